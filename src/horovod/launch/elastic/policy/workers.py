"""The workers of an elastic job that are alive: what each does, its rank, what its failure costs.

The functions are pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from horovod.core.base.rank_info import RankInfo, rank_infos
from horovod.launch.elastic.policy.capacity import SlotId
from horovod.launch.model.hosts import node_of
from horovod.launch.model.job_plan import failure_text
from horovod.rendezvous.identity.elastic_messages import Ready


class Phase(Enum):
    """How far a worker is."""

    STARTING = "starting"  # has never asked for a rank in an existing world
    READY = "ready"  # waits for a rank
    RUNNING = "running"  # connects with the others of its world, or trains
    DONE = "done"  # its training function has returned
    LATE = "late"  # the next world began before it asked; it is told when it asks
    LEAVING = "leaving"  # was told that the job goes on without it
    ENDING = "ending"  # is being ended


@dataclass
class Entry:
    """One worker. ``since``: when its phase began; ``world``: the last one where it had a rank.

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
    def hostname(self) -> str:
        """The host of its slot."""
        return self.slot_id.hostname

    @property
    def name(self) -> str:
        """Its name in messages."""
        rank = f"rank {self.rank_info.rank}, " if self.world else ""
        return f"worker {self.number} ({rank}{self.hostname})"

    @property
    def is_staying(self) -> bool:
        """Whether it has not been told to go."""
        return self.phase not in (Phase.LATE, Phase.LEAVING, Phase.ENDING)

    def may_have_state(self, world: int) -> bool:
        """Whether it has reported a state, or may have one from the current ``world``."""
        is_member = world > 0 and self.world == world
        return is_member or self.phase is Phase.LATE or self.ready.state_version.has_state

    def enter(self, phase: Phase, now: float) -> None:
        """Begin a phase. A worker that gets further is not lost."""
        self.phase, self.since, self.lost_at = phase, now, None


class WorkerRegistry:
    """All living workers, by number. A number is never used again."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._next = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def add(self, slot_id: SlotId, now: float) -> Entry:
        """A new worker in ``slot_id``."""
        info = RankInfo(hostname=slot_id.hostname)
        entry = self._entries[self._next] = Entry(self._next, slot_id, now, rank_info=info)
        self._next += 1
        return entry

    def get(self, number: int) -> Entry | None:
        """The worker, if it lives."""
        return self._entries.get(number)

    def remove(self, number: int) -> Entry | None:
        """Forget a worker that has ended."""
        return self._entries.pop(number, None)

    def on(self, hostname: str) -> list[Entry]:
        """The workers on that host."""
        return [entry for entry in self if entry.hostname == hostname]


# From the members of a world to their ranks.


def by_slot(entries: Sequence[Entry], hosts: Sequence[str]) -> list[Entry]:
    """Workers of a host together, and hosts of a machine; hosts in the order given."""
    position: dict[str, int] = {}
    for index, name in enumerate(hosts):
        position[name] = index
        position.setdefault(node_of(name), index)

    def key(entry: Entry) -> tuple[int, int, SlotId]:
        name, last = entry.hostname, len(hosts)
        return position.get(node_of(name), last), position.get(name, last), entry.slot_id

    return sorted(entries, key=key)


def best_informed(candidates: Sequence[Entry], world: int) -> Entry:
    """The next rank 0: the worker with the newest state; of several, the lowest rank in ``world``.

    Without such a rank, the first of ``candidates``.
    """

    def rank_of(entry: Entry) -> float:
        return entry.rank_info.rank if world and entry.world == world else math.inf

    newest = max(entry.ready.state_version for entry in candidates)
    return min((e for e in candidates if e.ready.state_version == newest), key=rank_of)


def in_rank_order(members: Sequence[Entry], hosts: Sequence[str], first: Entry) -> list[Entry]:
    """``first`` is rank 0; the others of its host follow, then the other hosts as in ``hosts``."""
    others = [name for name in hosts if name != first.hostname]
    ordered = by_slot(members, [first.hostname, *others])
    return [first, *(entry for entry in ordered if entry is not first)]


def positions(slots: Sequence[SlotId]) -> list[RankInfo]:
    """The positions in a world whose rank ``r`` is in ``slots[r]``.

    ``local_rank`` counts the slots of a machine in their order, whatever their ranks are.
    """
    nodes = [node_of(slot.hostname) for slot in slots]
    by_node = {node: sorted(s for s in slots if node_of(s.hostname) == node) for node in set(nodes)}
    local_ranks = [by_node[node].index(slot) for node, slot in zip(nodes, slots, strict=True)]
    found = rank_infos(nodes, local_ranks)
    return [replace(info, hostname=slot.hostname) for info, slot in zip(found, slots, strict=True)]


# The consequences of a failure.


class Ending(NamedTuple):
    """How a worker ended that had the state, or may have had it; ``at`` is a time in seconds."""

    name: str
    pid: int
    what: str
    at: float


class Failure(NamedTuple):
    """A worker that failed, and how. ``exit_code`` is None if the driver had to end it."""

    number: int
    name: str
    what: str
    rank_info: RankInfo
    exit_code: int | None

    @property
    def text(self) -> str:
        """The lines about it in the outcome of a failed job."""
        return failure_text(f"{self.name}, which {self.what}:", self.rank_info.rank, self.exit_code)


def costs_host(failed: Entry, others: Sequence[Entry], world: int, *, has_cooldown: bool) -> bool:
    """Whether all of a failed worker's host is blacklisted, not its slot alone.

    A host is, unless that would end a world because of a worker that never was in one, or, where
    hosts return after a while, end the last host that the job has.

    Args:
        failed: the worker.
        others: the workers that live on slots that can be used.
        world: the current world; 0 before the first.
        has_cooldown: blacklisting is not for good.
    """
    # Before the first world every worker that has been started counts.
    hostnames = {entry.hostname for entry in others if entry.is_staying and entry.world == world}
    if world and not failed.world and failed.hostname in hostnames:
        return False
    is_last = not hostnames - {failed.hostname}
    return not (has_cooldown and is_last and (failed.world or not world))


def most_named(members: Sequence[Entry]) -> list[Entry]:
    """The members that most members name as lost; none if no member is named.

    ``members`` begin with rank 0. Where two halves name each other, its word counts for more, since
    it has the state.
    """
    votes: Counter[int] = Counter()
    for position, voter in enumerate(members):
        weight = 3 if position == 0 else 2
        votes.update({number: weight for number in voter.ready.lost if number != voter.number})
    named = [entry for entry in members if votes[entry.number]]
    most = max((votes[entry.number] for entry in named), default=0)
    return [entry for entry in named if votes[entry.number] == most]
