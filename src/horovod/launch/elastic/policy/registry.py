"""The workers of an elastic job that are alive, and what each of them does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from horovod.core.base.rank_info import RankInfo
from horovod.launch.elastic.policy.capacity import SlotId
from horovod.rendezvous.identity.elastic_messages import Ready

__all__ = ["Entry", "Phase", "WorkerRegistry"]


class Phase(Enum):
    """How far a worker is."""

    STARTING = "starting"  # has never asked for a seat
    READY = "ready"  # waits for one
    RUNNING = "seated"  # meets the others of its world, or trains
    DONE = "done"  # its training function has returned
    LATE = "late"  # the next world began before it asked for a seat; it is told when it asks
    LEAVING = "leaving"  # was told that there is no seat for it
    ENDING = "ending"  # is being ended


@dataclass
class Entry:
    """One worker. ``since``: when it got into its phase; ``world``: where its last seat was.

    ``rank_info`` is the position in that world, or a provisional one. At ``lost_at`` the worker
    counts as lost, if others have the state; ``reported_by`` is the worker that reported it.
    ``pid`` is 0 until the process has started.
    """

    number: int
    slot_id: SlotId
    since: float
    phase: Phase = Phase.STARTING
    ready: Ready = field(default_factory=Ready)
    world: int = 0
    rank_info: RankInfo = field(default_factory=RankInfo)
    lost_at: float | None = None
    reported_by: str = ""
    pid: int = 0

    @property
    def name(self) -> str:
        """How messages call it."""
        rank = f"rank {self.rank}, " if self.world else ""
        return f"worker {self.number} ({rank}{self.slot_id.hostname})"

    @property
    def rank(self) -> int:
        """Its rank in the last world, or the provisional one."""
        return self.rank_info.rank

    @property
    def is_staying(self) -> bool:
        """Whether nobody has told it to go."""
        return self.phase not in (Phase.LATE, Phase.LEAVING, Phase.ENDING)

    def may_have_state(self, world: int) -> bool:
        """Whether it has reported a state, or may have one from the current ``world``."""
        is_member = world > 0 and self.world == world
        return is_member or self.phase is Phase.LATE or self.ready.state_version.has_state

    def enter(self, phase: Phase, now: float) -> None:
        """Whoever gets further is not lost."""
        self.phase, self.since, self.lost_at = phase, now, None


class WorkerRegistry:
    """All living workers, by number; numbers are never used again."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._next = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def add(self, slot_id: SlotId, now: float) -> Entry:
        """A new worker in ``slot_id``."""
        entry = Entry(self._next, slot_id, now, rank_info=RankInfo(hostname=slot_id.hostname))
        self._entries[entry.number] = entry
        self._next += 1
        return entry

    def get(self, number: int) -> Entry | None:
        """The worker, if it lives."""
        return self._entries.get(number)

    def remove(self, number: int) -> Entry | None:
        """It lives no more."""
        return self._entries.pop(number, None)

    def members(self, world: int) -> list[Entry]:
        """Who has had a seat in ``world`` and may go on, by rank."""
        members = [e for e in self if e.is_staying and world > 0 and e.world == world]
        return sorted(members, key=lambda entry: entry.rank)

    def on(self, hostname: str) -> list[Entry]:
        """Who is on that host."""
        return [entry for entry in self if entry.slot_id.hostname == hostname]

    def occupied(self) -> set[SlotId]:
        """Where somebody is, if only for a moment more."""
        return {entry.slot_id for entry in self}
