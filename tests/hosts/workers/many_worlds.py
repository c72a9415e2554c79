"""Ranks form a world, compute known results and shut down, again and again.

many_worlds.py WORLDS ROUNDS. Note ``report.R`` at the end: for each world None, or the error that
ended it, or what was wrong. After a failed world the ranks form the next one.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import notes
import numpy as np

import horovod.numpy as hvd
from horovod.errors import InitError

_ROWS = 5
# The attacker on the path looks for it.
_TEXT = b"what nobody on the path shall be able to read"


def check(found: Any, expected: Any, what: str) -> None:
    """ValueError unless the two arrays are the same."""
    if not np.array_equal(np.asarray(found), np.asarray(expected)):
        raise ValueError(f"{what}: {found!r} instead of {expected!r}")


def check_sums(name: str, rank: int, size: int) -> None:
    total = size * (size - 1) // 2
    check(hvd.allreduce(np.full(700, rank, np.float32), op=hvd.Sum, name=name), [total] * 700, name)
    tensors = [np.full(9, rank + index, np.int64) for index in range(4)]
    sums = hvd.grouped_allreduce(tensors, op=hvd.Sum, name=f"{name}.grouped")
    check(sums, [[total + size * index] * 9 for index in range(4)], f"{name}.grouped")
    scattered = hvd.reducescatter(np.full(4 * size, rank, np.int32), op=hvd.Sum, name=f"{name}.rs")
    check(scattered, [total] * 4, f"{name}.rs")


def check_exchanges(name: str, rank: int, size: int) -> None:
    gathered = hvd.allgather(np.full((rank + 1, 2), rank, np.int32), name=f"{name}.gather")
    expected = [[each] * 2 for each in range(size) for _ in range(each + 1)]
    check(gathered, expected, f"{name}.gather")
    for root in range(size):
        sent = hvd.broadcast(np.full(_ROWS, rank, np.int16), root, name=f"{name}.from{root}")
        check(sent, [root] * _ROWS, f"{name}.from{root}")
    text = np.frombuffer(_TEXT, np.uint8)
    mine = text if rank == 0 else np.zeros_like(text)
    check(hvd.broadcast(mine, 0, name=f"{name}.text"), text, f"{name}.text")
    splits = np.arange(1, size + 1, dtype=np.int32)
    sent = np.full(splits.sum(), rank, np.int64)
    received, counts = hvd.alltoall(sent, splits=splits, name=f"{name}.alltoall")
    check(counts, [rank + 1] * size, f"{name}.alltoall")
    check(received, np.repeat(np.arange(size), rank + 1), f"{name}.alltoall")


def check_many(name: str, rank: int, size: int) -> None:
    """Several at once, so that several messages are sent in a row."""
    tensors = [np.full(50 + index, rank, np.int32) for index in range(4)]
    handles = [
        hvd.allreduce_async(tensor, op=hvd.Sum, name=f"{name}.{index}")
        for index, tensor in enumerate(tensors)
    ]
    for index, handle in enumerate(handles):
        total = size * (size - 1) // 2
        check(hvd.synchronize(handle), [total] * (50 + index), f"{name}.{index}")


def live(world: int, rounds: int) -> str | None:
    """Take part in a world; return what was wrong with it."""
    try:
        hvd.init()
        for _ in range(rounds):
            name = f"tensor{world % 3}"
            check_sums(name, hvd.rank(), hvd.size())
            check_exchanges(name, hvd.rank(), hvd.size())
            check_many(name, hvd.rank(), hvd.size())
        hvd.barrier()
    except ValueError as error:
        # Errors of ``init`` are ValueErrors as well.
        kind = type(error).__name__ if isinstance(error, InitError) else "wrong"
        return f"{kind}: {error}"
    except hvd.HorovodInternalError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        hvd.shutdown()
    return None


def main() -> None:
    worlds, rounds = map(int, sys.argv[1:])
    rank = int(os.environ["HOROVOD_RANK"])
    reports = []
    for world in range(worlds):
        reports.append(live(world, rounds))
        if reports[-1] is not None:
            print(f"world {world}: {reports[-1]}", file=sys.stderr, flush=True)
    notes.leave(f"report.{rank}", reports)


if __name__ == "__main__":
    main()
