"""Deadlines of many things in their order, so that an event costs no look at all of them. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Timers"]

_MOST_STALE = 64

Thing = TypeVar("Thing", bound=Hashable)


class Timers(Generic[Thing]):
    """Each thing has one deadline or none; times are those of any one clock, in seconds."""

    def __init__(self) -> None:
        self._due: dict[Thing, float] = {}
        # Also what is not valid any more: it goes when its turn comes, or when it is most of it.
        self._queue: list[tuple[float, int, Thing]] = []
        self._numbers = itertools.count()  # so that two things are never compared

    def set(self, thing: Thing, due: float | None) -> None:
        """Give ``thing`` this deadline in place of another one; none for None."""
        if due is None:
            self._due.pop(thing, None)
        elif self._due.get(thing) != due:
            self._due[thing] = due
            heapq.heappush(self._queue, (due, next(self._numbers), thing))
        if len(self._queue) > 2 * len(self._due) + _MOST_STALE:
            self._queue = [entry for entry in self._queue if self._is_valid(entry)]
            heapq.heapify(self._queue)

    def first(self) -> float | None:
        """The next deadline, if there is one."""
        while self._queue and not self._is_valid(self._queue[0]):
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def take(self, now: float) -> Thing | None:
        """One of the things whose deadline has come, which has none from here on; the first."""
        first = self.first()
        if first is None or first > now:
            return None
        thing = heapq.heappop(self._queue)[2]
        del self._due[thing]
        return thing

    def _is_valid(self, entry: tuple[float, int, Thing]) -> bool:
        return self._due.get(entry[2]) == entry[0]
