"""All ranks sum until rank 0 finds the note ``enough``; sums are checked.

Note ``ready.R`` after some rounds; ``report.R`` at the end: the error, if any.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import notes
import numpy as np
from steady import error_of

import horovod.numpy as hvd

READY_AFTER = 3
ELEMENTS = 20_000


def sum_up() -> None:
    enough = Path(os.environ["NOTES"], "enough")
    rounds = is_over = 0
    while not is_over:
        mine = np.ones(ELEMENTS, np.float32)
        mine[0] = hvd.rank() == 0 and enough.exists()
        total = hvd.allreduce(mine, op=hvd.Sum, name="round")
        if not np.all(total[1:] == hvd.size()):
            raise ValueError(f"round {rounds}: {total}")
        is_over = total[0]
        rounds += 1
        if rounds == READY_AFTER:
            notes.leave(f"ready.{hvd.rank()}")


def main() -> None:
    hvd.init()
    rank = hvd.rank()
    first = error_of(sum_up)
    notes.leave(f"report.{rank}", {"error": first, "later": error_of(hvd.barrier)})
    if first is not None:
        print(first["text"], file=sys.stderr, flush=True)
        notes.read("leave")
    hvd.shutdown()


if __name__ == "__main__":
    main()
