"""Measures steps of training: how long they take, told by the engine's counters.

The thread that asks sleeps about as long as the steps will take, so a sample costs a few glances.
"""

from __future__ import annotations

import statistics
import threading
from typing import Protocol

__all__ = ["Counting", "StepMeter"]

_MOVED = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
# What is under way when the values change runs with either, and the step after it is disturbed.
_SETTLING = 2
# The engine remembers the times of somewhat more steps than these.
_AT_A_TIME = 200
_LEAST_SLEEP_S = 0.005
_TELLING = 20  # steps
_LONGEST_SLEEP_S = 5.0


class Counting(Protocol):
    """An engine, as far as it counts."""

    def counts(self) -> dict[str, int]:
        """All counts by name, times in nanoseconds."""

    def step_times(self, first: int) -> list[int]:
        """Nanoseconds of the steps from number ``first`` on, as far as they are remembered."""


class StepMeter:
    """Samples of the steps of one world; ``is_over`` ends every wait."""

    def __init__(self, engine: Counting, is_over: threading.Event) -> None:
        self._engine = engine
        self._is_over = is_over

    def step_ns(self, steps: int) -> float | None:
        """The median time of the next ``steps`` steps that begin and end as things are now.

        None when the world ends before.
        """
        first = self._engine.counts()["steps"] + _SETTLING
        times: list[int] = []
        while len(times) < steps:
            missing = first + len(times) + min(steps - len(times), _AT_A_TIME)
            if not self._sleep_until(missing):
                return None
            times += self._engine.step_times(first + len(times))
        return statistics.median(times[:steps])

    def step_bytes(self, steps: int) -> float | None:
        """Bytes that this rank submits in a step, of the next ``steps``; None as above."""
        before = self._engine.counts()
        if not self._sleep_until(before["steps"] + steps):
            return None
        after = self._engine.counts()
        return (_bytes_in(after) - _bytes_in(before)) / (after["steps"] - before["steps"])

    def has_joined(self) -> bool:
        """Whether this rank has called ``join``."""
        return self._engine.counts()["join_operations"] > 0

    def _sleep_until(self, step: int) -> bool:
        """Until so many steps are over; false when the world ends before."""
        pause_s, last = _LEAST_SLEEP_S, -1
        while not self._is_over.is_set():
            now = self._engine.counts()["steps"]
            if now >= step:
                return True
            # Where nothing has happened meanwhile, the program does something else for a while.
            pause_s = 2 * pause_s if now == last else _LEAST_SLEEP_S
            last = now
            pause_s = min(max(pause_s, self._expected_s(now, step)), _LONGEST_SLEEP_S)
            self._is_over.wait(pause_s)
        return False

    def _expected_s(self, now: int, step: int) -> float:
        """How long it takes from step ``now`` to ``step``, as far as the last ones tell.

        Of a world's first steps, which are slow, not for more of them than there have been.
        """
        times = self._engine.step_times(max(0, now - _TELLING))
        return statistics.median(times) * min(step - now, now) / 1e9 if times else 0.0


def _bytes_in(counts: dict[str, int]) -> int:
    return sum(counts[f"{kind}_bytes"] for kind in _MOVED)
