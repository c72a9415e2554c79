"""Rank 0 is interrupted while it waits, then continues; rank 1 submits only afterwards.

interrupted.py SIGINT|SIGUSR1: how; the handler of SIGUSR1 raises an exception of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import notes
import numpy as np

import horovod.numpy as hvd

COUNT = 4 << 20  # large enough for its own mapping: a use after free crashes


class StopWaitingError(Exception):
    pass


def interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt if signum == signal.SIGINT else StopWaitingError


def wait_interrupted(handle: int, name: str) -> None:
    try:
        notes.leave(name, os.getpid())  # its reader sends the signal, perhaps before this returns
        hvd.synchronize(handle)
    except (KeyboardInterrupt, StopWaitingError):
        notes.leave(f"{name}.interrupted", time.monotonic())


def main(name: str) -> None:
    signal.signal(signal.Signals[name], interrupt)
    hvd.init()
    if hvd.rank() == 1:
        notes.read("forgotten.interrupted")
        hvd.allreduce(np.ones(COUNT, np.float32), name="resumed")
        hvd.allreduce(np.ones(COUNT, np.float32), name="forgotten")
    else:
        resumed = hvd.allreduce_async(np.ones(COUNT, np.float32), name="resumed", op=hvd.Average)
        wait_interrupted(resumed, "resumed")
        wait_interrupted(
            hvd.allreduce_async(np.ones(COUNT, np.float32), name="forgotten"), "forgotten"
        )
        assert (hvd.synchronize(resumed) == 1).all()
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
