"""Which slots can be used now: what the discovery found, less what is blacklisted."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import NamedTuple

from horovod.launch.elastic.policy.blacklist import Blacklist

__all__ = ["Capacity", "SlotId"]


class SlotId(NamedTuple):
    """One slot of a host; indices count from 0."""

    hostname: str
    slot_index: int


class Capacity:
    """Hosts in the order in which they were first seen; ``hosts`` has what was found last."""

    def __init__(self, cooldown: tuple[float, float] | None, rng: random.Random) -> None:
        self.hosts: dict[str, int] = {}
        self.order: list[str] = []
        self._banned: Blacklist[str] = Blacklist(cooldown, rng)
        self._resting: Blacklist[SlotId] = Blacklist(cooldown, rng)

    def found(self, hosts: Mapping[str, int]) -> None:
        """What the discovery says now."""
        self.hosts = {name: count for name, count in hosts.items() if count > 0}
        self.order += [name for name in self.hosts if name not in self.order]

    def ban(self, now: float, hostname: str) -> float:
        """Blacklist a host; until when."""
        return self._banned.add(now, hostname)

    def rest(self, now: float, slot_id: SlotId) -> float:
        """Blacklist a single slot; until when."""
        return self._resting.add(now, slot_id)

    def pardon(self, now: float, kept: Collection[SlotId]) -> None:
        """Use the hosts of the ``kept`` slots again, but blacklist their other slots."""
        for name in {slot_id.hostname for slot_id in kept}:
            self._banned.remove(name)
            for index in self._indices(name):
                if (slot_id := SlotId(name, index)) not in kept and self.is_usable(now, slot_id):
                    self.rest(now, slot_id)

    def is_listed(self, slot_id: SlotId) -> bool:
        """Whether the discovery has found the slot, blacklisted or not."""
        return slot_id.slot_index < self.hosts.get(slot_id.hostname, 0)

    def slot_ids(self, now: float) -> list[SlotId]:
        """What can be used, in order."""
        slot_ids = (SlotId(name, index) for name in self.order for index in self._indices(name))
        return [slot_id for slot_id in slot_ids if self.is_usable(now, slot_id)]

    def is_usable(self, now: float, slot_id: SlotId) -> bool:
        """Whether a worker may be there."""
        return (
            self.is_listed(slot_id)
            and not self.is_banned(now, slot_id.hostname)
            and self._resting.end_of(now, slot_id) is None
        )

    def is_banned(self, now: float, hostname: str) -> bool:
        """Whether the whole host is blacklisted."""
        return self._banned.end_of(now, hostname) is not None

    def banned_until(self, now: float) -> dict[str, float]:
        """The hosts found that are blacklisted, and until when."""
        ends = {name: self._banned.end_of(now, name) for name in self.hosts}
        return {name: end for name, end in ends.items() if end is not None}

    def resting_until(self, now: float) -> dict[SlotId, float]:
        """The slots found that are blacklisted by themselves, and until when."""
        slot_ids = [SlotId(name, index) for name in self.hosts for index in self._indices(name)]
        ends = {slot_id: self._resting.end_of(now, slot_id) for slot_id in slot_ids}
        return {slot_id: end for slot_id, end in ends.items() if end is not None}

    def next_change(self, now: float) -> float | None:
        """When the next blacklisting ends."""
        ends = (self._banned.next_end(now), self._resting.next_end(now))
        return min((end for end in ends if end is not None), default=None)

    def forget_others(self, now: float, hostnames: Collection[str]) -> None:
        """Hosts but these that cannot be used lose their place, and come last if they return.

        So those that stayed keep the lowest ranks.
        """
        self.order = [
            name
            for name in self.order
            if name in hostnames or (name in self.hosts and not self.is_banned(now, name))
        ]
        self.order += [name for name in self.hosts if name not in self.order]

    def _indices(self, hostname: str) -> range:
        return range(self.hosts.get(hostname, 0))
