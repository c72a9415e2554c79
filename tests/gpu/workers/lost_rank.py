"""Rank 1 dies during a collective on rank 0's GPU; the collective must end. The first word is an
empty folder for the two to meet in."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

import horovod.torch as hvd
from horovod.core import world

BUSY_CYCLES = 20_000_000_000  # about 10 seconds
DEADLINE_S = 60
is_over_nccl = os.environ.get("HOROVOD_GPU_OPERATIONS") == "nccl"
started = Path(sys.argv[1]) / "started"


def die():
    torch.cuda._sleep(BUSY_CYCLES)  # so this rank's part does not arrive
    hvd.allreduce_async_(values, name="held")
    deadline = time.monotonic() + DEADLINE_S
    while not started.exists():
        if time.monotonic() > deadline:
            sys.exit(f"rank 0 did not start its part within {DEADLINE_S} s")
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def take():
    handle = hvd.allreduce_async_(values, name="held")
    if is_over_nccl:
        hvd.synchronize(handle)  # returns when the collective is in the stream
    started.touch()
    if not is_over_nccl:
        hvd.synchronize(handle)  # returns when the collective is done
    torch.cuda.synchronize()  # ends only because the collective is aborted
    world.confirm()


hvd.init()
rank = hvd.rank()
torch.cuda.set_device(rank if "own" in sys.argv else 0)
values = torch.ones(1 << 20, device="cuda")
hvd.allreduce_(values)
torch.cuda.synchronize()
if rank == 1:
    die()
with pytest.raises(hvd.HorovodInternalError, match=r"rank 1 \(pid "):
    take()
print("rank 0 goes on after HorovodInternalError", flush=True)
hvd.shutdown()
