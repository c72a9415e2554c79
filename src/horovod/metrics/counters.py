"""The counters of this process, over all its worlds.

Each engine has its own counters (``engine/runtime/counters.h``), and an elastic job has several
engines in turn. Their counters are added here, so numbers never decrease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

MOVING = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
KINDS = (*MOVING, "barrier", "join")
_NS = "_ns"
# Current values, which are not added up.
_GAUGES = ("in_flight", "last_step_ns")
_NAMES = {"in_flight": "in_flight_operations", "stepped_ns": "step_seconds"}
_COUNTS = (
    *(f"{kind}_operations" for kind in KINDS),
    *(f"{kind}_{what}" for kind in MOVING for what in ("tensors", "bytes")),
    *("in_flight", "buckets", "fused_tensors", "link_bytes"),
    *("queued_ns", "waited_ns", "blocked_ns"),
    *("errors", "stalls", "steps", "stepped_ns", "last_step_ns"),
)


class Counting(Protocol):
    """The counters of an engine."""

    def counts(self) -> dict[str, int]:
        """All counts by name, times in nanoseconds."""


class CounterTotals:
    """The sums of the counters of all engines of this process."""

    def __init__(self) -> None:
        self._past: Counter[str] = Counter()
        self._worlds = 0

    def begin(self) -> None:
        """A world begins."""
        self._worlds += 1

    def end(self, engine: Counting) -> None:
        """A world has ended; ``engine`` was its engine."""
        counts = engine.counts()
        self._past.update({name: counts[name] for name in counts if name not in _GAUGES})

    def read(self, engine: Counting | None) -> dict[str, float]:
        """All numbers by their public names; ``engine`` is that of the current world."""
        present: Mapping[str, int] = {} if engine is None else engine.counts()
        numbers: dict[str, float] = {}
        for name in _COUNTS:
            count = self._past[name] + present.get(name, 0)
            is_time = name.endswith(_NS)
            public = f"{name.removesuffix(_NS)}_seconds" if is_time else name
            numbers[_NAMES.get(name, public)] = count / 1e9 if is_time else count
        numbers["resets"] = max(0, self._worlds - 1)
        return numbers
