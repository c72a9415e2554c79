"""Faults that wait for a worker at a certain point of its work; the first that comes there falls.

A trap is a file with the point's name. Who finds it takes it away by renaming it, which works for
one process only, says so in its history and raises the signal against itself.
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
    """``signum`` for whoever comes to ``point`` first: rank 0 or another, or anybody (None).

    With ``delay_s`` the worker goes on for so long, to a moment inside of what follows, and dies of
    an alarm, for which nobody has to be awake.
    """

    point: str
    signum: int
    for_leader: bool | None = None
    delay_s: float = 0.0


def lay(folder: Path, trap: Trap) -> None:
    """Let it wait."""
    unfinished = folder / f".{trap.point}"
    unfinished.write_text(json.dumps(asdict(trap)))
    unfinished.rename(folder / trap.point)


def remove(folder: Path, point: str) -> None:
    """It waits no longer."""
    (folder / point).unlink(missing_ok=True)


def spring(folder: Path, point: str, rank: int, world: str, history: History) -> None:
    """A worker of this rank, in this world, is at ``point``."""
    path = folder / point
    try:
        trap = Trap(**json.loads(path.read_text()))
    except FileNotFoundError:
        return
    if trap.for_leader is not None and trap.for_leader != (rank == 0):
        return
    try:
        path.rename(folder / f".taken.{history.process}")
    except FileNotFoundError:  # another one was faster
        return
    history.add("trap", world=world, note=f"{signal.Signals(trap.signum).name} at {trap.point}")
    if trap.delay_s:
        signal.setitimer(signal.ITIMER_REAL, trap.delay_s)
    else:
        os.kill(os.getpid(), trap.signum)
