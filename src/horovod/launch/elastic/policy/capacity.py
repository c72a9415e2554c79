"""Which slots can be used now: what the discovery found, less what is blacklisted. No clock."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

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
        """Add ``key`` once more; returns the end of the entry (``inf``: for good)."""
        count = self._counts[key] = self._counts.get(key, 0) + 1
        self._ends[key] = now + self._duration(count)
        return self._ends[key]

    def remove(self, key: Key) -> None:
        """Allow ``key`` again."""
        self._ends.pop(key, None)

    def end_of(self, now: float, key: Key) -> float | None:
        """The end of the entry of ``key``; None if it is not listed now."""
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


class SlotId(NamedTuple):
    """One slot of a host; indices count from 0."""

    hostname: str
    slot_index: int


class Capacity:
    """Hosts in the order in which they were first seen; ``hosts`` has what was found last.

    ``bad_hosts`` and ``bad_slots`` are blacklisted.
    """

    def __init__(self, cooldown: tuple[float, float] | None, rng: random.Random) -> None:
        self.hosts: dict[str, int] = {}
        self.order: list[str] = []
        self.bad_hosts: Blacklist[str] = Blacklist(cooldown, rng)
        self.bad_slots: Blacklist[SlotId] = Blacklist(cooldown, rng)

    def found(self, hosts: Mapping[str, int]) -> None:
        """Take over what the discovery says now."""
        self.hosts = {name: count for name, count in hosts.items() if count > 0}
        self.order += [name for name in self.hosts if name not in self.order]

    def reinstate(self, now: float, kept: Collection[SlotId]) -> None:
        """Use the hosts of the ``kept`` slots again, but blacklist their other slots."""
        for name in {slot_id.hostname for slot_id in kept}:
            self.bad_hosts.remove(name)
            for slot_id in self._slots_of(name):
                if slot_id not in kept and self.is_usable(now, slot_id):
                    self.bad_slots.add(now, slot_id)

    def is_listed(self, slot_id: SlotId) -> bool:
        """Whether the discovery has found the slot, blacklisted or not."""
        return slot_id.slot_index < self.hosts.get(slot_id.hostname, 0)

    def usable_slots(self, now: float) -> list[SlotId]:
        """The slots that can be used, in order."""
        slots = [slot_id for name in self.order for slot_id in self._slots_of(name)]
        return [slot_id for slot_id in slots if self.is_usable(now, slot_id)]

    def is_usable(self, now: float, slot_id: SlotId) -> bool:
        """Whether a worker may run in the slot."""
        return (
            self.is_listed(slot_id)
            and not self.is_blacklisted(now, slot_id.hostname)
            and self.bad_slots.end_of(now, slot_id) is None
        )

    def is_blacklisted(self, now: float, hostname: str) -> bool:
        """Whether the whole host is blacklisted."""
        return self.bad_hosts.end_of(now, hostname) is not None

    def blacklisted_hosts(self, now: float) -> dict[str, float]:
        """The hosts found that are blacklisted, and until when."""
        ends = {name: self.bad_hosts.end_of(now, name) for name in self.hosts}
        return {name: end for name, end in ends.items() if end is not None}

    def blacklisted_slots(self, now: float, hostname: str) -> list[float]:
        """The ends of the entries of single slots of the host."""
        ends = [self.bad_slots.end_of(now, slot_id) for slot_id in self._slots_of(hostname)]
        return [end for end in ends if end is not None]

    def next_change(self, now: float) -> float | None:
        """When the next blacklisting ends."""
        ends = (self.bad_hosts.next_end(now), self.bad_slots.next_end(now))
        return min((end for end in ends if end is not None), default=None)

    def forget_others(self, now: float, hostnames: Collection[str]) -> None:
        """Remove unusable hosts from the order, except ``hostnames``.

        A host that returns later is the last one. So the hosts that stay keep the lowest ranks.
        """
        usable = {name for name in self.hosts if not self.is_blacklisted(now, name)}
        self.order = [name for name in self.order if name in hostnames or name in usable]
        self.order += [name for name in self.hosts if name not in self.order]

    def _slots_of(self, hostname: str) -> list[SlotId]:
        return [SlotId(hostname, index) for index in range(self.hosts.get(hostname, 0))]
