"""Faults that wait at a certain point of a worker's work and hit the first worker there.

A trap is a file with the point's name. A worker that finds it renames it, which succeeds in
one process only, adds an event to its history and sends itself the signal.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from histories import History

__all__ = ["POINTS", "Trap", "lay", "remove", "spring"]

POINTS = ("batch", "save", "restore", "enter", "middle", "sync")
"""Before a batch; between commit and the next step; after going back; in a new world before, in the
middle of, and after taking over the state of rank 0."""


@dataclass(frozen=True)
class Trap:
    """``signum`` for the first worker at ``point``: rank 0, another rank, or any (None).

    With ``delay_s`` the worker continues for that time, so the signal comes during its next action,
    from an alarm that needs no thread.
    """

    point: str
    signum: int
    for_leader: bool | None = None
    delay_s: float = 0.0


def lay(folder: Path, trap: Trap) -> None:
    """Set the trap."""
    unfinished = folder / f".{trap.point}"
    unfinished.write_text(json.dumps(asdict(trap)))
    unfinished.rename(folder / trap.point)


def remove(folder: Path, point: str) -> None:
    """Remove the trap."""
    (folder / point).unlink(missing_ok=True)


def spring(folder: Path, point: str, rank: int, world: str, history: History) -> None:
    """Called by a worker of this rank, in this world, at ``point``."""
    path = folder / point
    try:
        trap = Trap(**json.loads(path.read_text()))
    except FileNotFoundError:
        return
    if trap.for_leader is not None and trap.for_leader != (rank == 0):
        return
    try:
        path.rename(folder / f".taken.{history.process}")
    except FileNotFoundError:  # another worker was faster
        return
    history.add("trap", world=world, note=f"{signal.Signals(trap.signum).name} at {trap.point}")
    if trap.delay_s:
        signal.setitimer(signal.ITIMER_REAL, trap.delay_s)
    else:
        os.kill(os.getpid(), trap.signum)
