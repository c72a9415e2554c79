"""Torch's own process group beside Horovod's world: both have the same ranks."""

import torch
import torch.distributed

import horovod.torch as hvd

torch.distributed.init_process_group("gloo")
hvd.init()
assert torch.distributed.get_rank() == hvd.rank()
values = torch.full((3,), float(hvd.rank() + 1))
torch.distributed.all_reduce(values)
assert values.equal(hvd.allreduce(torch.full((3,), float(hvd.rank() + 1)), op=hvd.Sum))
print("same", torch.distributed.get_world_size(), hvd.size())
torch.distributed.destroy_process_group()
