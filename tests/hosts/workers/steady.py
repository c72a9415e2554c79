"""All ranks sum a tensor again and again until an error; then each reports what it saw.

steady.py KILOBYTES ROUNDS [fork]: stops after ROUNDS if there is no error before; `fork`
gives each rank a child, as data loaders do, that outlives it. Notes: ``ready.R``
(the pid) after some rounds, ``report.R`` at the end. Sums are checked. After an error all wait for
the note ``leave``, so that the exit of one rank is not the cause of another one's error.
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

READY_AFTER = 3


def sum_up(kilobytes: int, rounds: int) -> None:
    ones = np.ones(kilobytes * 256, np.float32)
    for index in range(rounds):
        total = hvd.allreduce(ones, op=hvd.Sum, name="steady")
        if total[0] != hvd.size() or total[-1] != hvd.size():
            raise ValueError(f"round {index}: {total[0]}, {total[-1]}")
        if index == READY_AFTER:
            notes.leave(f"ready.{hvd.rank()}", os.getpid())


def error_of(call: Any) -> dict[str, Any] | None:
    try:
        call()
    except hvd.HorovodInternalError as error:
        return {"type": type(error).__name__, "text": str(error), "time": time.monotonic()}
    return None


def fork_a_child() -> None:
    if os.fork() == 0:
        signal.alarm(60)
        signal.pause()


def main() -> None:
    kilobytes, rounds = map(int, sys.argv[1:3])
    hvd.init()
    if sys.argv[3:] == ["fork"]:
        fork_a_child()
    rank = hvd.rank()
    first = error_of(lambda: sum_up(kilobytes, rounds))
    notes.leave(f"report.{rank}", {"error": first, "later": error_of(hvd.barrier)})
    if first is not None:
        print(first["text"], file=sys.stderr, flush=True)
        notes.read("leave")
    hvd.shutdown()


if __name__ == "__main__":
    main()
