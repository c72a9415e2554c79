"""The interpreter ends in an unusual state. ending.py STATE, see ``STATES``."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import warnings

import notes
import numpy as np

import horovod.numpy as hvd
from horovod.trace.recording import EVENT_DTYPE, EventKind


def leave_pending() -> None:
    for index in range(100):
        hvd.allreduce_async(np.ones(1000), name=f"never.{hvd.rank()}.{index}")
    gc.collect()


def leave_under_way() -> None:
    for index in range(30):
        hvd.allreduce_async_(np.ones(1 << 20), name=f"big.{index}")


def wait_for_never(name: str) -> None:
    with contextlib.suppress(hvd.HorovodInternalError):
        hvd.allreduce(np.ones(3), name=f"never.{hvd.rank()}.{name}")


def leave_daemons() -> None:
    for index in range(4):
        threading.Thread(target=wait_for_never, args=(str(index),), daemon=True).start()
    # They are submitted, so their threads wait, or are about to.
    while np.count_nonzero(_kinds() == EventKind.SUBMIT) < 5:
        os.sched_yield()


def _kinds() -> np.ndarray:
    from horovod.core import world

    return np.frombuffer(world.engine().events(), EVENT_DTYPE)["kind"]


def leave_from_a_thread() -> None:
    """The main thread ends at once; a non-daemon thread still works."""

    def work() -> None:
        for index in range(20):
            hvd.allreduce(np.ones(1000), name=f"thread.{index}")

    threading.Thread(target=work).start()


def leave_a_forked_child() -> None:
    pending = hvd.allreduce_async(np.ones(3), name=f"never.{hvd.rank()}")
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork, by Python 3.12 and later
    if (child := os.fork()) == 0:
        try:
            hvd.synchronize(pending)
        except hvd.HorovodInternalError:
            sys.exit(7)  # with all exit handlers
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


STATES = {
    "pending": leave_pending,
    "under way": leave_under_way,
    "daemons": leave_daemons,
    "thread": leave_from_a_thread,
    "fork": leave_a_forked_child,
    "nothing": lambda: None,
}

if __name__ == "__main__":
    hvd.init()
    hvd.barrier()
    STATES[sys.argv[1]]()
    # No rank leaves while another still prepares its state.
    notes.leave(f"ready.{hvd.rank()}")
    notes.read_from_each("ready", hvd.size())
