"""A collective runs after the earlier work of its stream, and before the later work."""

import os
import time

import torch

import horovod.torch as hvd
from horovod.core import world

hvd.init()
size = hvd.size()
BUSY_CYCLES = 2_000_000_000  # about a second
is_over_nccl = os.environ.get("HOROVOD_GPU_OPERATIONS") == "nccl"
values = torch.zeros(1 << 20, device="cuda")


def submit(busy_cycles):
    torch.cuda._sleep(busy_cycles)
    values.fill_(1.0)  # a collective that starts too early would miss this
    hvd.allreduce_(values, op=hvd.Sum)
    values.add_(1.0)  # a collective that ends too late would overwrite this


# CUDA loads a kernel when it is first used, and then waits for kernels of all streams.
submit(1)
torch.cuda.synchronize()
for _ in range(3):
    values.fill_(0.0)
    torch.cuda.synchronize()
    begin = time.monotonic()
    submit(BUSY_CYCLES)
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
