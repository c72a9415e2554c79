"""Every kernel of Horovod's own, on small tensors: sums over CUDA IPC by dtype, and Adasum."""

import torch

import horovod.torch as hvd

hvd.init()
torch.cuda.set_device(0)
size = hvd.size()
floats = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
for dtype in [*floats, torch.int32, torch.uint8]:
    for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
        for count in (1, 7, 4097):
            values = torch.ones(count, dtype=dtype, device="cuda")
            found = hvd.allreduce(values, op=op)
            assert bool((found == (size if op == hvd.Sum else 1)).all())
for count in (1, 5, 10_001):
    values = torch.full((count,), 2.0, device="cuda")
    torch.testing.assert_close(hvd.allreduce(values, op=hvd.Adasum), values)
torch.cuda.synchronize()
hvd.shutdown()
