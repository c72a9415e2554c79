"""A point in time that a wait must not pass, and a queue of such points."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from horovod.core.base.ranks import ranks_text
from horovod.errors import InitError

_MOST_STALE = 64

Thing = TypeVar("Thing", bound=Hashable)


class Deadline:
    """A point in time, ``timeout_s`` after construction."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.at = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self.at - time.monotonic())

    @property
    def has_passed(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self.at

    def missed_by(
        self, ranks: Collection[int], size: int, what: str = "did not arrive"
    ) -> InitError:
        """The error for these ranks of a world of ``size``."""
        return InitError(
            f"init: {ranks_text(ranks)} of {size} {what} within {self.timeout_s:g} s "
            "(HOROVOD_START_TIMEOUT)",
            ranks=ranks,
        )


class Timers(Generic[Thing]):
    """Each thing has one deadline or none. Times are seconds of one clock.

    ``set`` and ``take`` cost O(log n). Pure.
    """

    def __init__(self) -> None:
        self._due: dict[Thing, float] = {}
        # Replaced entries stay until their turn comes or until they are most of the queue.
        self._queue: list[tuple[float, int, Thing]] = []
        self._numbers = itertools.count()  # so that things are never compared

    def set(self, thing: Thing, due: float | None) -> None:
        """Replace the deadline of ``thing``; None removes it."""
        if due is None:
            self._due.pop(thing, None)
        elif self._due.get(thing) != due:
            self._due[thing] = due
            heapq.heappush(self._queue, (due, next(self._numbers), thing))
        if len(self._queue) > 2 * len(self._due) + _MOST_STALE:
            self._queue = [entry for entry in self._queue if self._is_valid(entry)]
            heapq.heapify(self._queue)

    def first(self) -> float | None:
        """The earliest deadline, if there is one."""
        while self._queue and not self._is_valid(self._queue[0]):
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def take(self, now: float) -> Thing | None:
        """Remove and return the first thing whose deadline has passed; None if there is none."""
        first = self.first()
        if first is None or first > now:
            return None
        thing = heapq.heappop(self._queue)[2]
        del self._due[thing]
        return thing

    def _is_valid(self, entry: tuple[float, int, Thing]) -> bool:
        return self._due.get(entry[2]) == entry[0]
