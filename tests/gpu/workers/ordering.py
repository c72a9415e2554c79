"""A collective comes after what its stream is busy with, and before what follows it."""

import os
import time

import torch

import horovod.torch as hvd
from horovod.core import world

hvd.init()
size = hvd.size()
BUSY_CYCLES = 2_000_000_000  # about a second
is_over_nccl = os.environ.get("HOROVOD_GPU_OPERATIONS") == "nccl"

values = torch.ones(1 << 20, device="cuda")
hvd.allreduce_(values)  # what the first one costs
torch.cuda.synchronize()
for _ in range(3):
    values.fill_(0.0)
    torch.cuda.synchronize()
    begin = time.monotonic()
    torch.cuda._sleep(BUSY_CYCLES)
    values.fill_(1.0)  # which a collective that came too early would miss
    hvd.allreduce_(values, op=hvd.Sum)
    values.add_(1.0)  # which a collective that ended too late would overwrite
    returned = time.monotonic() - begin
    done = torch.cuda.current_stream().query()
    world.confirm()
    torch.cuda.synchronize()
    busy = time.monotonic() - begin
    assert bool((values == size + 1).all())
    if is_over_nccl:
        assert not done, "the stream was not busy"
        assert returned < busy / 2, (returned, busy)
hvd.shutdown()
