"""Rank 0 waits for a message from any rank, which no rank sends; it reports its error.

Notes: ``ready.R`` (the pid), ``report.0``. The others leave after the note ``leave``.
"""

from __future__ import annotations

import os
import sys

import notes
import torch
import torch.distributed as dist
from steady import error_of

import horovod.torch as hvd


def main() -> None:
    hvd.init()
    rank, store = hvd.rank(), sys.argv[1]
    dist.init_process_group(
        "horovod", init_method=f"file://{store}", rank=rank, world_size=hvd.size()
    )
    dist.barrier()
    notes.leave(f"ready.{rank}", os.getpid())
    if rank == 0:

        def receive() -> None:
            dist.recv(torch.empty(1))

        notes.leave("report.0", {"error": error_of(receive), "later": error_of(receive)})
    notes.read("leave")
    os._exit(0)


if __name__ == "__main__":
    main()
