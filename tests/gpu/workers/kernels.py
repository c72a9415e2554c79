"""Every kernel of Horovod's own, on small tensors: over CUDA IPC or NCCL, and Adasum."""

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
for dtype in floats:
    values = [torch.full((count,), 3.0, dtype=dtype, device="cuda") for count in (1, 7, 4097)]
    for found in hvd.grouped_allreduce(values, prescale_factor=0.5):
        assert bool((found == 1.5).all()), (dtype, found)
    assert all(bool((given == 3).all()) for given in values), dtype
    values = [
        torch.full((1 + i % 9,), float(i % 100), dtype=dtype, device="cuda") for i in range(300)
    ]
    hvd.grouped_allreduce_(values)
    assert all(bool((found == i % 100).all()) for i, found in enumerate(values)), dtype
for count in (1, 5, 10_001):
    values = torch.full((count,), 2.0, device="cuda")
    torch.testing.assert_close(hvd.allreduce(values, op=hvd.Adasum), values)
torch.cuda.synchronize()
hvd.shutdown()
