"""Rank 1 dies during a collective on rank 0's GPU; the collective must end."""

import os
import signal
import sys

import pytest
import torch

import horovod.torch as hvd
from horovod.core import world

hvd.init()
rank = hvd.rank()
torch.cuda.set_device(rank if "own" in sys.argv else 0)
values = torch.ones(1 << 20, device="cuda")
hvd.allreduce_(values)
torch.cuda.synchronize()
if rank == 1:
    torch.cuda._sleep(20_000_000_000)  # so its part never arrives
    hvd.allreduce_async_(values, name="held")
    # When this has ended, rank 0 has started the other one too.
    hvd.allreduce(torch.ones(1), name="on the host")
    os.kill(os.getpid(), signal.SIGKILL)
handle = hvd.allreduce_async_(values, name="held")
hvd.allreduce(torch.ones(1), name="on the host")


def take():
    hvd.synchronize(handle)
    torch.cuda.synchronize()  # ends only because the collective is aborted
    world.confirm()


with pytest.raises(hvd.HorovodInternalError, match=r"rank 1 \(pid "):
    take()
print("rank 0 goes on after HorovodInternalError", flush=True)
hvd.shutdown()
