"""What `torch.distributed` does over NCCL on this machine, without Horovod: is NCCL itself able?"""

import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
torch.cuda.set_device(0)
dist.init_process_group("nccl", rank=rank, world_size=size)
for count in (5, 1 << 20):
    values = torch.full((count,), rank + 1.0, device="cuda")
    dist.all_reduce(values)
    assert bool((values == size * (size + 1) / 2).all())
print("NCCL sums", torch.cuda.nccl.version(), flush=True)
torch.cuda.synchronize()
dist.destroy_process_group()
