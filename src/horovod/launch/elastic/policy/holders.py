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
    "newest_version",
    "without_last_holders",
]


def newest_version(entries: Sequence[Entry]) -> StateVersion:
    """The newest state that any of them has reported."""
    return max((entry.ready.state_version for entry in entries), default=StateVersion())


def giver(pool: WorkerPool, chosen: Sequence[Entry]) -> Entry | None:
    """The worker that waits with a newer state than all of ``chosen``, if there is one.

    Its slot may be gone or blacklisted: then it goes as soon as others have its state.
    """
    newest = newest_version(chosen)
    newer = [e for e in pool.registry if e.phase is Phase.READY and e.ready.state_version > newest]
    return best_informed(newer, pool.world) if newer else None


def is_fit(pool: WorkerPool, chosen: Sequence[Entry], newest: Ready) -> bool:
    """Whether a world of ``chosen``, who all wait, loses no state that may still come.

    ``newest`` says whether there has been any state.
    """
    if any(e.ready.state_version.has_state and e.world == pool.world for e in chosen):
        return True  # members of one world differ by a commit at most
    if any(entry.phase is Phase.LATE for entry in pool.registry) or _are_away(pool):
        return False
    return newest_version(chosen).has_state or not newest.state_version.has_state


def can_be_missed(pool: WorkerPool, newest: Ready) -> bool:
    """Whether a member that does not answer may be given up: somebody waits with the state."""
    waiting = [entry for entry in pool.registry if entry.phase is Phase.READY]
    return newest_version(waiting).has_state or not newest.state_version.has_state


def is_state_gone(pool: WorkerPool, newest: Ready) -> bool:
    """Whether none of those who live, wherever they are, can have the state."""
    if pool.world == 0 or _are_away(pool):
        return False
    rest = [entry for entry in pool.registry if entry.phase in (Phase.READY, Phase.LATE)]
    if any(e.phase is Phase.LATE or e.ready.state_version.has_state for e in rest):
        return False
    # Members that never began have nothing to lose, unless somebody else had.
    return not pool.members() or newest.state_version.has_state


def without_last_holders(named: Sequence[Entry], members: Sequence[Entry]) -> list[Entry]:
    """Who is excluded if most members cannot reach ``named``.

    That is ``named``, unless nobody else has a state as new: then those that name them.
    """
    others = [entry for entry in members if entry not in named]
    if newest_version(others) >= newest_version(named):
        return list(named)
    numbers = {entry.number for entry in named}
    return [entry for entry in others if numbers & set(entry.ready.lost)]


def _are_away(pool: WorkerPool) -> bool:
    """Whether a member of the current world does not wait for the next one."""
    return any(entry.phase is not Phase.READY for entry in pool.members())
