"""Ranks with problems for the doctor: ailing.py healthy|slow|diverging|endless|raising."""

from __future__ import annotations

import os
import sys
import time

import notes
import numpy as np

import horovod.numpy as hvd


def compute(milliseconds: float) -> None:
    """Keeps the core busy."""
    end = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < end:
        pass


def step(milliseconds: float) -> None:
    compute(milliseconds)
    handles = [hvd.allreduce_async(np.ones(100), name=f"g{i}") for i in range(10)]
    for handle in handles:
        hvd.synchronize(handle)


def healthy() -> None:
    for _ in range(20):
        step(2)


def slow() -> None:
    for _ in range(20):
        step(20 if hvd.rank() == 1 else 2)


def validate() -> None:
    hvd.allreduce(np.ones(3), name="accuracy")


def diverging() -> None:
    """Run until killed: rank 1 validates, the other rank does not."""
    for _ in range(20):
        step(1)
    if hvd.rank() == 1:
        validate()
    step(1)


def endless() -> None:
    """Run until rank 1 is killed."""
    for _ in range(20):
        step(1)
    notes.leave(f"pid.{hvd.rank()}", os.getpid())
    while True:
        step(1)


def raising() -> None:
    """End rank 1 with an exception while the others wait for it."""
    for number in range(20):
        if number == 10 and hvd.rank() == 1:
            raise ValueError("bad batch")
        step(1)


if __name__ == "__main__":
    hvd.init()
    programs = (healthy, slow, diverging, endless, raising)
    {program.__name__: program for program in programs}[sys.argv[1]]()
