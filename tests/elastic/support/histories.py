"""The events of every worker of a chaos run, in their order: one file per process.

A worker adds an event before or after the fact, and never changes one. The write is complete
when ``add`` returns, so a killed worker leaves all its events.
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
    """An action of ``process``.

    Kinds: ``enter`` a world, whose name rank 0 adds before it tells the others; ``sync``, which has
    ended; ``start`` of the training function; ``begin`` of a batch, before others are told of it;
    ``batch``, which has been applied; ``save``; ``restore``; ``trap``, when a fault waited;
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
    descriptors: tuple[str, ...] = ()
    threads: int = 0
    resident_bytes: int = 0
    weights: tuple[float, ...] = ()
    note: str = ""

    @classmethod
    def decoded(cls, process: str, line: bytes) -> Event:
        """One line of a file."""
        fields = json.loads(line)
        for name in ("samples", "weights", "descriptors"):
            if name in fields:
                fields[name] = tuple(fields[name])
        return cls(process=process, **fields)


class History:
    """Writes the file of this process in ``folder``."""

    def __init__(self, folder: Path, hostname: str) -> None:
        self.process = f"{hostname}-{os.getpid()}-{time.monotonic_ns()}"
        self._file = os.open(folder / self.process, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, kind: str, **facts: Any) -> None:
        """Add an event with the current time."""
        line = json.dumps({"kind": kind, "time": time.monotonic(), **facts})
        os.write(self._file, line.encode() + b"\n")


class Histories:
    """Reads the files of all processes while they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}
        self._rest: dict[str, bytes] = {}

    def new(self) -> list[Event]:
        """The events added since the last call, in order for each process."""
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
    """By time; an event that another one caused comes later."""
    return sorted(events, key=lambda event: event.time)
