"""A rank dies while data loaders have live worker processes. data_loader.py fork|spawn"""

from __future__ import annotations

import os
import signal
import sys
import time

import notes
import torch
from lost_rank import error_of
from torch.utils.data import DataLoader

import horovod.torch as hvd


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def main(context: str) -> None:
    hvd.init()
    loader = DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context=context)
    batches = iter(loader)
    hvd.allreduce(next(batches), name="batch")
    hvd.barrier()
    if hvd.rank() == hvd.size() - 1:
        notes.leave("victim", os.getpid())
        notes.read_from_each("waiting", hvd.size() - 1)
        notes.leave("end", time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    batch = next(batches)
    notes.leave(f"waiting.{hvd.rank()}")
    pending = [error_of(lambda: hvd.allreduce(batch, name="batch"))]
    remaining = sum(1 for _ in batches)
    later = [error_of(lambda: hvd.allreduce(batch, name="batch"))]
    rank = hvd.rank()
    hvd.shutdown()
    left = [] if remaining == 6 else [f"{remaining} batches"]
    notes.leave(f"report.{rank}", {"pending": pending, "later": later, "left": left})


if __name__ == "__main__":
    main(sys.argv[1])
