"""Ranks that the test observes: traced.py timeline|handler."""

from __future__ import annotations

import os
import signal
import sys

import notes
import numpy as np

import horovod.numpy as hvd


def work(steps: int) -> None:
    for _ in range(steps):
        handles = [hvd.allreduce_async(np.ones(100), name=f"g{i}") for i in range(20)]
        for handle in handles:
            hvd.synchronize(handle)


def timeline() -> None:
    """Run until rank 0 is killed."""
    notes.leave(f"pid.{hvd.rank()}", os.getpid())
    work(1_000_000)


def handler() -> None:
    """For SIGUSR1: Horovod's handler is invisible, and the program's own handler replaces it."""
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    work(2)
    os.kill(os.getpid(), signal.SIGUSR1)
    notes.leave(f"pid.{hvd.rank()}", os.getpid())
    notes.read("written")
    caught = []
    signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
    os.kill(os.getpid(), signal.SIGUSR1)
    work(1)
    hvd.shutdown()
    hvd.init()
    os.kill(os.getpid(), signal.SIGUSR1)
    work(1)
    notes.leave(f"caught.{hvd.rank()}", len(caught))


if __name__ == "__main__":
    hvd.init()
    {"timeline": timeline, "handler": handler}[sys.argv[1]]()
