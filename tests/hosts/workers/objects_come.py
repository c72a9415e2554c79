"""Rank 0 sends an object to the others in each possible way, each in a new world.

objects_come.py TEXT: the object holds the text. Note ``report.R``: for each way whether this rank
got the right object, or the error that it got there or at the next barrier.
"""

from __future__ import annotations

import os
import sys

import notes

import horovod.numpy as hvd
from horovod.elastic.state import ObjectState


def get(way: str, text: str) -> object:
    """What rank 0 had."""
    mine = {"text": text if hvd.rank() == 0 else ""}
    if way == "broadcast":
        return hvd.broadcast_object(mine, root_rank=0)
    if way == "gather":
        return hvd.allgather_object(mine)[0]
    state = ObjectState(hvd.broadcast_object, hvd.rank, **mine)
    state.sync()
    return {"text": state.text}  # type: ignore[attr-defined]


def attempt(way: str, text: str) -> dict[str, object]:
    hvd.init()
    error = None
    is_right = False
    try:
        is_right = get(way, text) == {"text": text}
        hvd.barrier()
    except hvd.HorovodInternalError as caught:
        error = f"{type(caught).__name__}: {caught}"
        print(error, file=sys.stderr, flush=True)
    hvd.shutdown()
    return {"is_right": is_right, "error": error}


def main() -> None:
    text = sys.argv[1]
    reports = {way: attempt(way, text) for way in ("broadcast", "gather", "state")}
    notes.leave(f"report.{os.environ['HOROVOD_RANK']}", reports)


if __name__ == "__main__":
    main()
