"""Who may not be used for a while, or never again. No clock: every question brings the time."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Blacklist"]

Key = TypeVar("Key", bound=Hashable)


class Blacklist(Generic[Key]):
    """``cooldown``: the least and the longest time of an entry, in seconds; None: for good.

    The k-th entry of one key lasts ``lower * 2**k`` and a random part of ``lower``, so that hosts
    that failed together do not come back together.
    """

    def __init__(self, cooldown: tuple[float, float] | None, rng: random.Random) -> None:
        self._cooldown = cooldown
        self._random = rng
        self._counts: dict[Key, int] = {}
        self._ends: dict[Key, float] = {}

    def add(self, now: float, key: Key) -> float:
        """Enter ``key`` once more; until when (``inf``: for good)."""
        count = self._counts[key] = self._counts.get(key, 0) + 1
        self._ends[key] = now + self._duration(count)
        return self._ends[key]

    def remove(self, key: Key) -> None:
        """It may be used again."""
        self._ends.pop(key, None)

    def end_of(self, now: float, key: Key) -> float | None:
        """Until when ``key`` is listed; None if it is not."""
        end = self._ends.get(key)
        return end if end is not None and now < end else None

    def next_end(self, now: float) -> float | None:
        """When the next entry ends."""
        return min((end for end in self._ends.values() if now < end < math.inf), default=None)

    def _duration(self, count: int) -> float:
        if self._cooldown is None:
            return math.inf
        lower, upper = self._cooldown
        # Beyond 2**12 even the least lower bound has met the greatest upper one.
        return min(upper, lower * float(1 << min(count, 12)) + self._random.random() * lower)
