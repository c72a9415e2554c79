"""Measures how long steps of training take, from the engine's counters.

The thread sleeps about as long as the steps will take, so a sample reads the counters a few times.
"""

from __future__ import annotations

import statistics
import threading
from typing import Protocol

from horovod.metrics.counters import MOVING

# The step in which the values change runs with both, and the step after it is disturbed.
_SETTLING = 2
# The engine keeps the times of somewhat more steps than these.
_AT_A_TIME = 200
_LEAST_SLEEP_S = 0.005
_RECENT = 20  # steps from which the next ones are estimated
_LONGEST_SLEEP_S = 5.0


class StepCounts(Protocol):
    """The counters of an engine."""

    def counts(self) -> dict[str, int]:
        """All counts by name, times in nanoseconds."""

    def step_times(self, first: int) -> list[int]:
        """Nanoseconds of the steps from number ``first`` on, as far as they are kept."""


class StepMeter:
    """Samples of the steps of one world; ``is_over`` ends every wait."""

    def __init__(self, engine: StepCounts, is_over: threading.Event) -> None:
        self._engine = engine
        self._is_over = is_over

    def step_ns(self, steps: int) -> float | None:
        """The median time of the next ``steps`` whole steps; None if the world ends before."""
        first = self._engine.counts()["steps"] + _SETTLING
        times: list[int] = []
        while len(times) < steps:
            missing = first + len(times) + min(steps - len(times), _AT_A_TIME)
            if not self._sleep_until(missing):
                return None
            times += self._engine.step_times(first + len(times))
        return statistics.median(times[:steps])

    def step_bytes(self, steps: int) -> float | None:
        """Mean bytes that this rank submits in one of the next ``steps``; None as above."""
        before = self._engine.counts()
        if not self._sleep_until(before["steps"] + steps):
            return None
        after = self._engine.counts()
        return (_bytes_in(after) - _bytes_in(before)) / (after["steps"] - before["steps"])

    def has_joined(self) -> bool:
        """Whether this rank has called ``join``."""
        return self._engine.counts()["join_operations"] > 0

    def _sleep_until(self, step: int) -> bool:
        """Wait until that step has ended; false if the world ends before."""
        pause_s, last = _LEAST_SLEEP_S, -1
        while not self._is_over.is_set():
            now = self._engine.counts()["steps"]
            if now >= step:
                return True
            # Without a new step the program does something else: wait longer each time.
            pause_s = 2 * pause_s if now == last else _LEAST_SLEEP_S
            last = now
            pause_s = min(max(pause_s, self._expected_s(now, step)), _LONGEST_SLEEP_S)
            self._is_over.wait(pause_s)
        return False

    def _expected_s(self, now: int, step: int) -> float:
        """The time from step ``now`` to ``step``, estimated from recent steps.

        A world's first steps are slow, so at most as many steps as have passed are estimated.
        """
        times = self._engine.step_times(max(0, now - _RECENT))
        return statistics.median(times) * min(step - now, now) / 1e9 if times else 0.0


def _bytes_in(counts: dict[str, int]) -> int:
    return sum(counts[f"{kind}_bytes"] for kind in MOVING)
