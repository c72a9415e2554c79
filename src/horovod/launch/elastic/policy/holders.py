"""Which workers have the state, and who passes it on to the next world. Pure functions.

A worker that waits for a seat has said whether it has the state, and how new it is. A member of the
current world that does not wait may have it, and is waited for while nobody else has.
"""

from __future__ import annotations

from collections.abc import Sequence

from horovod.launch.elastic.policy.ranking import best_informed
from horovod.launch.elastic.policy.registry import Entry, Phase
from horovod.launch.elastic.policy.worker_pool import WorkerPool
from horovod.rendezvous.identity.elastic_messages import Ready, StateVersion

__all__ = [
    "can_be_missed",
    "giver",
    "is_fit",
    "is_state_gone",
    "newest_standing",
    "without_last_holders",
]


def newest_standing(entries: Sequence[Entry]) -> StateVersion:
    """The newest state that any of them has reported."""
    return max((entry.ready.standing for entry in entries), default=StateVersion())


def giver(staff: WorkerPool, chosen: Sequence[Entry]) -> Entry | None:
    """The worker that waits with a newer state than all of ``chosen``, if there is one.

    Its slot may be gone or blacklisted: then it goes as soon as others have its state.
    """
    newest = newest_standing(chosen)
    newer = [e for e in staff.roll if e.phase is Phase.READY and e.ready.standing > newest]
    return best_informed(newer, staff.world) if newer else None


def is_fit(staff: WorkerPool, chosen: Sequence[Entry], newest: Ready) -> bool:
    """Whether a world of ``chosen``, who all wait, loses no state that may still come.

    ``newest`` says whether there has been any state.
    """
    if any(e.ready.standing.has_state and e.world == staff.world for e in chosen):
        return True  # members of one world differ by a commit at most
    if any(entry.phase is Phase.LATE for entry in staff.roll) or _are_away(staff):
        return False
    return newest_standing(chosen).has_state or not newest.standing.has_state


def can_be_missed(staff: WorkerPool, newest: Ready) -> bool:
    """Whether a member that does not answer may be given up: somebody waits with the state."""
    waiting = [entry for entry in staff.roll if entry.phase is Phase.READY]
    return newest_standing(waiting).has_state or not newest.standing.has_state


def is_state_gone(staff: WorkerPool, newest: Ready) -> bool:
    """Whether none of those who live, wherever they are, can have the state."""
    if staff.world == 0 or _are_away(staff):
        return False
    rest = [entry for entry in staff.roll if entry.phase in (Phase.READY, Phase.LATE)]
    if any(e.phase is Phase.LATE or e.ready.standing.has_state for e in rest):
        return False
    # Members that never began have nothing to lose, unless somebody else had.
    return not staff.members() or newest.standing.has_state


def without_last_holders(named: Sequence[Entry], members: Sequence[Entry]) -> list[Entry]:
    """Who is excluded if most members cannot reach ``named``.

    That is ``named``, unless nobody else has a state as new: then those that name them.
    """
    others = [entry for entry in members if entry not in named]
    if newest_standing(others) >= newest_standing(named):
        return list(named)
    numbers = {entry.number for entry in named}
    return [entry for entry in others if numbers & set(entry.ready.lost)]


def _are_away(staff: WorkerPool) -> bool:
    """Whether a member of the current world does not wait for the next one."""
    return any(entry.phase is not Phase.READY for entry in staff.members())
