"""The last rank ends; the others report the errors of their calls, and when they came.

lost_rank.py MOMENT WAY: when (see ``MOMENTS``) and how (see ``WAYS``) it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import notes
import numpy as np

import horovod.numpy as hvd
from horovod.core import world
from horovod.trace.recording import EVENT_DTYPE, EventKind


def raise_an_exception() -> None:
    raise RuntimeError("the script has a bug")


WAYS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sys.exit": lambda: sys.exit(3),
    "exception": raise_an_exception,
    "os._exit": lambda: os._exit(4),
    "return": lambda: None,
}


def start_many() -> list[int]:
    """Start a gigabyte of collectives; their results do not matter, so they share one tensor."""
    tensor = np.ones(8 << 20, np.float32)
    handles = []
    for index in range(32):
        try:
            handles.append(hvd.allreduce_async_(tensor, name=f"big{index}"))
        except hvd.HorovodInternalError:  # the victim was faster than this loop
            break
    return handles


def is_in_the_middle() -> bool:
    kinds = np.frombuffer(world.engine().events(), EVENT_DTYPE)["kind"].tolist()
    return kinds.count(EventKind.BUCKET_START) - kinds.count(EventKind.BUCKET_DONE) == 1


def collective_as_victim() -> None:
    start_many()
    notes.until(is_in_the_middle)


def wait_for_the_others() -> None:
    notes.read_from_each("waiting", hvd.size() - 1)


def awaited_as_survivor() -> list[int]:
    handle = hvd.allreduce_async(np.ones(8), name="awaited")
    notes.leave(f"waiting.{hvd.rank()}")
    return [handle]


def idle_as_survivor() -> list[int]:
    """Call nothing until the victim has left: a killed one has ended, others may take longer."""
    notes.leave(f"waiting.{hvd.rank()}")
    victim_pid, end = notes.read("victim"), notes.read("end")
    notes.until(lambda: notes.is_gone(victim_pid) or time.monotonic() > end + 0.5)
    return []


def hold_the_negotiation_table() -> None:
    """Hold the engine's shortest critical section: its lock is the first word of a set."""
    wait_for_the_others()
    with open("/proc/self/maps") as maps:
        parts = [line for line in maps if "memfd:horovod" in line]
    # The memory of all sets is at offset 0, then the flight recorders; the world's set is last.
    line = max(parts, key=lambda part: int(part.split()[2], 16))
    lock = ctypes.c_uint32.from_address(int(line.split("-")[0], 16))
    notes.until(lambda: lock.value == 0)
    lock.value = hvd.rank() + 1
    notes.leave("locked")


def negotiation_as_survivor() -> list[int]:
    notes.leave(f"waiting.{hvd.rank()}")
    notes.read("locked")
    return []


# Name: actions of the last rank before it ends, and of the others, which return handles.
MOMENTS = {
    "collective": (collective_as_victim, start_many),
    "awaited": (wait_for_the_others, awaited_as_survivor),
    "idle": (wait_for_the_others, idle_as_survivor),
    "negotiation": (hold_the_negotiation_table, negotiation_as_survivor),
}


def error_of(call: Any) -> dict[str, Any] | None:
    try:
        call()
    except hvd.HorovodInternalError as error:
        return {"type": type(error).__name__, "text": str(error), "time": time.monotonic()}
    return None


def possessions() -> set[str]:
    """Threads, descriptors and shared mappings of this process."""
    found = {f"thread {tid}" for tid in os.listdir("/proc/self/task")}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"descriptor {fd.name}: {fd.readlink()}")
        except FileNotFoundError:  # the descriptor that lists the directory
            continue
    with open("/proc/self/maps") as maps:
        return found | {line for line in maps if "memfd:horovod" in line}


def survive(pending: list[int], before: set[str]) -> None:
    errors = [error_of(lambda handle=handle: hvd.synchronize(handle)) for handle in pending]
    later = [
        error_of(lambda: hvd.allreduce(np.ones(3), name="later")),
        error_of(lambda: hvd.broadcast(np.ones(3), hvd.rank(), name="later")),
        error_of(hvd.barrier),
    ]
    rank = hvd.rank()
    hvd.shutdown()
    # The connection to the launcher's store stays open for the next init.
    left = sorted(item for item in possessions() - before if "socket:" not in item)
    notes.leave(f"report.{rank}", {"pending": errors, "later": later, "left": left})


def main(moment: str, way: str) -> None:
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # the launcher ends a failed job; survive to report
    before = possessions()
    hvd.init()
    as_victim, as_survivor = MOMENTS[moment]
    hvd.barrier()
    if hvd.rank() == hvd.size() - 1:
        as_victim()
        notes.leave("victim", os.getpid())
        notes.leave("end", time.monotonic())
        WAYS[way]()
    else:
        survive(as_survivor(), before)


if __name__ == "__main__":
    main(*sys.argv[1:])
