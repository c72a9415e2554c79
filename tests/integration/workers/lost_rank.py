"""The last rank ends; the others report what every call says, and when it says so.

lost_rank.py MOMENT WAY: in which moment (see ``MOMENTS``) and how (see ``WAYS``) it ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import notes
import numpy as np

import horovod.numpy as hvd
from horovod import world

BUCKET_START, BUCKET_DONE = 2, 4  # event kinds, numbered as in engine/trace/recorder.h


def raise_an_exception() -> None:
    raise RuntimeError("the script has a bug")


WAYS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sys.exit": lambda: sys.exit(3),
    "exception": raise_an_exception,
    "os._exit": lambda: os._exit(4),
    "return": lambda: None,
    "shutdown": hvd.shutdown,
}


def start_many() -> list[int]:
    """A gigabyte of collectives under way; their results do not matter, so they share one tensor."""
    tensor = np.ones(8 << 20, np.float32)
    return [hvd.allreduce_async_(tensor, name=f"big{index}") for index in range(32)]


def is_in_the_middle() -> bool:
    kinds = [event[1] for event in world.engine().events()]
    return kinds.count(BUCKET_START) - kinds.count(BUCKET_DONE) == 1


def collective_as_victim() -> None:
    start_many()
    notes.until(is_in_the_middle)


def awaited_as_victim() -> None:
    for rank in range(hvd.size() - 1):
        notes.read(f"waiting.{rank}")


def awaited_as_survivor() -> list[int]:
    handle = hvd.allreduce_async(np.ones(8), name="awaited")
    notes.leave(f"waiting.{hvd.rank()}")
    return [handle]


def idle_as_survivor() -> list[int]:
    notes.read("end")
    return []


# Name: what the last rank does before it ends, what the others do; the result is still pending.
MOMENTS = {
    "collective": (collective_as_victim, start_many),
    "awaited": (awaited_as_victim, awaited_as_survivor),
    "idle": (lambda: None, idle_as_survivor),
}


def error_of(call: Any) -> dict[str, Any] | None:
    try:
        call()
    except hvd.HorovodInternalError as error:
        return {"type": type(error).__name__, "text": str(error), "time": time.monotonic()}
    return None


def what_is_left() -> list[str]:
    """Threads, descriptors and mappings of the engine in this process."""
    left = [f"thread {tid}" for tid in os.listdir("/proc/self/task") if int(tid) != os.getpid()]
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the descriptor that listed the directory
            continue
        if "memfd" in target or "pidfd" in target or ("pipe:" in target and int(fd) > 2):
            left.append(target)
    with open("/proc/self/maps") as maps:
        return left + [line for line in maps if "memfd:horovod" in line]


def survive(pending: list[int], victim_pid: int) -> None:
    errors = [error_of(lambda handle=handle: hvd.synchronize(handle)) for handle in pending]
    if not pending:
        notes.until(lambda: notes.is_gone(victim_pid) or time.monotonic() > notes.read("end") + 0.5)
    later = [
        error_of(lambda: hvd.allreduce(np.ones(3), name="later")),
        error_of(lambda: hvd.broadcast(np.ones(3), hvd.rank(), name="later")),
        error_of(hvd.barrier),
    ]
    rank = hvd.rank()
    hvd.shutdown()
    facts = {"pending": errors, "later": later, "left": what_is_left()}
    notes.leave(f"report.{rank}", facts)


def main(moment: str, way: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends a failed job; let us see it
    hvd.init()
    victim = hvd.size() - 1
    as_victim, as_survivor = MOMENTS[moment]
    pids = hvd.allgather(np.array([os.getpid()]))
    hvd.barrier()
    if hvd.rank() == victim:
        as_victim()
        notes.leave("victim", os.getpid())
        notes.leave("end", time.monotonic())
        WAYS[way]()
    else:
        survive(as_survivor(), int(pids[victim]))


if __name__ == "__main__":
    main(*sys.argv[1:])
