"""What the launcher says of a job that goes on or has ended well: a status line and a last line.

The status line is on a terminal only. Its numbers come from ranks on this machine.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple

from horovod.launch.model.hosts import counted
from horovod.metrics.progress import ProgressMemory, Row

INTERVAL_S = 0.5
_FIRST_S = 2.0  # shorter jobs get no status line
_WINDOW_S = 10.0
_MOST_RANKS = 4096
_LEAST_SHARE = 0.05  # of the time; a smaller difference between ranks names none of them

Rows = Mapping[int, Row]


class Pace(NamedTuple):
    """How fast steps are, and what share of the time other ranks wait for the slowest one."""

    steps: int
    step_s: float
    waiting: float
    slowest: int | None


def pace_between(before: Rows, after: Rows) -> Pace | None:
    """The pace between two looks at the ranks, or None without a step."""
    ranks = [rank for rank in after if _has_moved(_of(before, rank), after[rank])]
    if not ranks:
        return None
    waits = {rank: _wait_share(_of(before, rank), after[rank]) for rank in ranks}
    slowest, first = min(waits, key=waits.__getitem__), ranks[0]
    steps = after[first].steps - _of(before, first).steps
    elapsed_ns = after[first].elapsed_ns - _of(before, first).elapsed_ns
    waiting = max(waits.values())
    is_told = waiting - waits[slowest] > _LEAST_SHARE
    return Pace(after[first].steps, elapsed_ns / steps / 1e9, waiting, slowest if is_told else None)


def _has_moved(before: Row, after: Row) -> bool:
    """Whether both are of one process, which has taken a step; workers of elastic jobs change."""
    return after.steps > before.steps and after.elapsed_ns > before.elapsed_ns


def _of(rows: Rows, rank: int) -> Row:
    return rows.get(rank, Row(0, 0, 0))


def _wait_share(before: Row, after: Row) -> float:
    share = (after.blocked_ns - before.blocked_ns) / (after.elapsed_ns - before.elapsed_ns)
    return min(max(share, 0.0), 1.0)  # several threads of a rank may wait


def pace_text(pace: Pace) -> str:
    """``step 1200, 148 ms a step, waiting 18 % (for rank 1)``."""
    step = f"{pace.step_s * 1000:.3g} ms" if pace.step_s < 1 else f"{pace.step_s:.3g} s"
    culprit = "" if pace.slowest is None else f" (for rank {pace.slowest})"
    return f"step {pace.steps}, {step} a step, waiting {pace.waiting:.0%}{culprit}"


def time_text(seconds: float) -> str:
    """``41 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class StatusLine:
    """The status line of a job that begins now; ``is_shown``: on a terminal."""

    def __init__(self, *, is_shown: bool) -> None:
        is_shown = is_shown and hasattr(os, "memfd_create")  # Linux has it
        self._begin_s = time.monotonic()
        self._memory = ProgressMemory(_MOST_RANKS) if is_shown else None
        self._looks: deque[tuple[float, Rows]] = deque([(self._begin_s, {})])
        self.deadline = self._begin_s + _FIRST_S if is_shown else None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that workers on this machine need."""
        return self._memory.environment if self._memory is not None else {}

    def text(self, ranks: int) -> str | None:
        """The line for a job of so many ranks, when it is due."""
        now = time.monotonic()
        if self._memory is None or self.deadline is None or now < self.deadline:
            return None
        self.deadline = now + INTERVAL_S
        rows = self._memory.rows()
        self._looks.append((now, rows))
        while len(self._looks) > 2 and self._looks[1][0] < now - _WINDOW_S:
            self._looks.popleft()
        pace = pace_between(self._looks[0][1], rows)
        took = f"{counted(ranks, 'rank')}, {time_text(now - self._begin_s)}"
        return took if pace is None else f"{took}, {pace_text(pace)}"

    def last(self, ranks: int) -> str:
        """The last line of a job that has ended well."""
        took = f"{counted(ranks, 'rank')} finished in {time_text(time.monotonic() - self._begin_s)}"
        pace = None if self._memory is None else pace_between({}, self._memory.rows())
        return took if pace is None else f"{took}; {pace_text(pace)}"

    def close(self) -> None:
        """Free what it has."""
        if self._memory is not None:
            with closing(self._memory):
                self._memory = self.deadline = None
