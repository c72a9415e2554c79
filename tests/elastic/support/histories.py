"""What every worker of a chaos run did, in the order in which it did it: one file per process.

A worker adds an event before or after the fact that it is about and never changes one; the write is
through when ``add`` returns, so a worker that is killed leaves all that it had said.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Event", "Histories", "History", "in_order"]


@dataclass(frozen=True)
class Event:
    """Something that ``process`` did.

    Kinds: ``enter`` a world, whose name rank 0 says before it tells the others; ``sync``, which has
    ended; ``start`` of the training function; ``begin`` of a batch, before anybody is told of it;
    ``batch``, which has been applied; ``save``; ``restore``; ``trap``, when a fault was waiting;
    ``end`` of training. ``step`` counts the batches in the weights; a ``begin`` has the number that
    its batch will have. ``digest`` is of weights, momentum and progress. Times are monotonic.
    """

    process: str
    kind: str
    time: float
    hostname: str = ""
    pid: int = 0
    world: str = ""
    rank: int = 0
    size: int = 0
    epoch: int = 0
    step: int = 0
    samples: tuple[int, ...] = ()
    loss: float = 0.0
    digest: str = ""
    descriptors: int = 0
    threads: int = 0
    resident_bytes: int = 0
    weights: tuple[float, ...] = ()
    note: str = ""

    @classmethod
    def decoded(cls, process: str, line: bytes) -> Event:
        """One line of a file."""
        fields = json.loads(line)
        for name in ("samples", "weights"):
            if name in fields:
                fields[name] = tuple(fields[name])
        return cls(process=process, **fields)


class History:
    """The file of this process, in ``folder``."""

    def __init__(self, folder: Path, hostname: str) -> None:
        self.process = f"{hostname}-{os.getpid()}-{time.monotonic_ns()}"
        self._file = os.open(folder / self.process, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, kind: str, **facts: Any) -> None:
        """Note an event that is now."""
        line = json.dumps({"kind": kind, "time": time.monotonic(), **facts})
        os.write(self._file, line.encode() + b"\n")


class Histories:
    """The files of all processes, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}
        self._rest: dict[str, bytes] = {}

    def new(self) -> list[Event]:
        """What was added since the last call, those of a process in their order."""
        events = []
        for name in sorted(os.listdir(self._folder)):
            lines = self._new_lines(name)
            events += [Event.decoded(name, line) for line in lines]
        return events

    def _new_lines(self, name: str) -> list[bytes]:
        start = self._read.get(name, 0)
        path = self._folder / name
        if path.stat().st_size == start:
            return []
        with path.open("rb") as file:
            file.seek(start)
            text = file.read()
        self._read[name] = start + len(text)
        *lines, self._rest[name] = (self._rest.get(name, b"") + text).split(b"\n")
        return lines


def in_order(events: Iterable[Event]) -> list[Event]:
    """By time; what a process says after it has heard from another comes after it."""
    return sorted(events, key=lambda event: event.time)
