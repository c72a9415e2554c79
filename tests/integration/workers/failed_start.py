"""The last rank meets the others, but its engine does not start, and its process lives on."""

from __future__ import annotations

import os

import notes
import numpy as np

import horovod.numpy as hvd
from horovod.core import assembly


def no_device(*_: object) -> None:
    raise RuntimeError("no device")


def fail(others: int) -> None:
    assembly.device_plane = no_device
    try:
        hvd.init()
    except RuntimeError as error:
        notes.leave("victim", str(error))
    notes.read_from_each("report", others)


def survive() -> None:
    hvd.init()
    error = ""
    try:
        hvd.allreduce(np.ones(3), name="needed")
    except hvd.HorovodInternalError as lost:
        error = f"{type(lost).__name__} {lost.ranks} {lost}"
    notes.leave(f"report.{hvd.rank()}", error)


if __name__ == "__main__":
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    if rank == size - 1:
        fail(size - 1)
    else:
        survive()
