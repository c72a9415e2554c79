"""What follows from a worker's failure, and whom the others hold responsible. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from horovod.core.base.rank_info import RankInfo
from horovod.launch.elastic.policy.registry import Entry
from horovod.launch.jobs.outcomes import failure_text

__all__ = ["Ending", "Failure", "Penalty", "most_named", "penalty_for"]


class Penalty(Enum):
    """What is blacklisted."""

    SLOT = "slot"
    HOST = "host"


@dataclass(frozen=True)
class Ending:
    """How a worker ended that had the state, or may have had it; ``at`` is a time in seconds."""

    name: str
    pid: int
    what: str
    at: float


@dataclass(frozen=True)
class Failure:
    """A worker that failed, and how. ``exit_code``: None if it had to be ended."""

    number: int
    name: str
    what: str
    rank_info: RankInfo
    exit_code: int | None

    @property
    def text(self) -> str:
        """How a failed job reads because of it."""
        return failure_text(f"{self.name}, which {self.what}", self.rank_info.rank, self.exit_code)


def penalty_for(
    failed: Entry, others: Sequence[Entry], world: int, *, has_cooldown: bool
) -> Penalty:
    """Whether all of a failed worker's host is blacklisted, or its slot alone.

    A host is, unless that would end a world for the sake of a worker that never was in one, or,
    where hosts return after a while, end the last host that the job has.

    Args:
        failed: the worker.
        others: those that live on slots that can be used.
        world: the current world; 0 before the first.
        has_cooldown: blacklisting is not for good.
    """
    hostname = failed.slot_id.hostname
    # Before the first world whoever has been started counts.
    relevant = [entry for entry in others if entry.is_staying and (entry.world == world)]
    on_host = any(entry.slot_id.hostname == hostname for entry in relevant)
    elsewhere = any(entry.slot_id.hostname != hostname for entry in relevant)
    if world and not failed.world and on_host:
        return Penalty.SLOT
    if has_cooldown and not elsewhere and (failed.world or not world):
        return Penalty.SLOT
    return Penalty.HOST


def most_named(members: Sequence[Entry]) -> list[Entry]:
    """The members that most members name as lost; none if nobody is named.

    ``members`` begin with rank 0: where two halves name each other, its word counts for more, since
    it has the state.
    """
    votes: Counter[int] = Counter()
    for position, voter in enumerate(members):
        weight = 3 if position == 0 else 2
        votes.update({number: weight for number in voter.ready.lost if number != voter.number})
    named = [entry for entry in members if votes[entry.number]]
    most = max((votes[entry.number] for entry in named), default=0)
    return [entry for entry in named if votes[entry.number] == most]
