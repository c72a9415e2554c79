"""Which workers belong to the next world, whether it can begin, where the state is. Pure.

A worker that waits for a rank has said whether it has the state, and how new it is. A member of the
current world that does not wait may have it. It is waited for while no other worker has the state.
"""

from __future__ import annotations

from collections.abc import Sequence

from horovod.launch.elastic.policy.worker_pool import WorkerPool
from horovod.launch.elastic.policy.workers import (
    Entry,
    Phase,
    best_informed,
    by_slot,
    in_rank_order,
    positions,
)
from horovod.rendezvous.identity.elastic_messages import (
    HostUpdate,
    RankAssignment,
    Ready,
    StateVersion,
)


def candidates(pool: WorkerPool, most: int | None) -> list[Entry]:
    """The members of the next world if no other worker gets ready: survivors first."""
    survivors = [entry for entry in pool.members() if pool.is_usable(entry)]
    others = [entry for entry in pool.ready() if entry not in survivors]
    others.sort(key=lambda entry: not entry.ready.state_version.has_state)
    return [*survivors, *others][:most]


def is_complete_at_first(pool: WorkerPool, most: int | None) -> bool:
    """Whether all workers that the first world should have are ready; spares may not be."""
    first = by_slot(pool.usable(), pool.capacity.order)[:most]
    return all(entry.phase is not Phase.STARTING for entry in first)


def change(pool: WorkerPool, min_np: int, max_np: int | None, *, is_urgent: bool) -> HostUpdate:
    """The change of hosts that the members should know; none while newcomers still start.

    If no member may stay, the members train until enough other workers can take their state over.
    With ``is_urgent`` they do not wait for that.
    """
    members = pool.members()
    staying = [entry for entry in members if pool.is_usable(entry)]
    ready = pool.ready()
    has_room = max_np is None or len(staying) < max_np
    if pool.promising() and (max_np is None or len(staying) + len(ready) < max_np):
        return HostUpdate.NONE
    if not staying and len(ready) < min_np and not is_urgent:
        return HostUpdate.NONE
    kind = HostUpdate.REMOVED if len(staying) < len(members) else HostUpdate.NONE
    # Members that are too few to go on alone will wait for a newcomer, which needs the state.
    if (ready and has_room) or (kind and len(staying) < min_np):
        kind |= HostUpdate.ADDED
    return kind


def never_began(pool: WorkerPool, chosen: Sequence[Entry]) -> bool:
    """Whether the current world failed, without a loss, before a member took over its state."""
    return (
        pool.world > 0
        and not pool.losses
        and all(entry.ready.state_version.world < pool.world for entry in chosen)
        and any(entry.ready.reason for entry in chosen if entry.world == pool.world)
    )


def is_continued(chosen: Sequence[Entry], world: int) -> bool:
    """Whether all have the same state already, since they left ``world`` together."""
    versions = {entry.ready.state_version for entry in chosen}
    stay = all(entry.ready.keeps_state and entry.world == world for entry in chosen)
    return world > 0 and stay and len(versions) == 1


# Answers to workers.


def ordered(pool: WorkerPool, chosen: Sequence[Entry]) -> list[Entry]:
    """``chosen`` by their next ranks."""
    return in_rank_order(chosen, pool.capacity.order, best_informed(chosen, pool.world))


def assignments(
    by_rank: Sequence[Entry], world: int, updates: int, must_sync: bool
) -> dict[int, RankAssignment]:
    """The message for each member, by its number."""
    numbers = tuple(entry.number for entry in by_rank)
    infos = positions([entry.slot_id for entry in by_rank])
    made = (RankAssignment(world, info, numbers, updates, must_sync) for info in infos)
    return dict(zip(numbers, made, strict=True))


def assign_provisional_ranks(pool: WorkerPool, entries: Sequence[Entry], updates: int) -> None:
    """Let newcomers get ready to train; no world waits for them before they ask again."""
    if not entries:
        return
    found, infos = {}, pool.provisional_positions()
    for entry in entries:
        info = entry.rank_info = infos[entry.number]
        if entry.phase is not Phase.STARTING:
            entry.enter(Phase.STARTING, pool.now)
        found[entry.number] = RankAssignment(pool.world, info, updates=updates, is_provisional=True)
    pool.answer(found)


def remove(pool: WorkerPool, chosen: Sequence[Entry] = ()) -> None:
    """Answer workers, but for ``chosen``, that wait for a rank and whose slots are gone."""
    removed = {}
    for entry in pool.registry:
        if entry.phase is Phase.READY and entry not in chosen and not pool.is_usable(entry):
            where = f"{entry.hostname}[{entry.rank_info.local_rank}]"
            text = f"{where} was removed from the elastic job: {_why_unusable(pool, entry)}"
            removed[entry.number] = RankAssignment(removal=text)
            entry.enter(Phase.LEAVING, pool.now)
    if removed:
        pool.answer(removed)


def _why_unusable(pool: WorkerPool, entry: Entry) -> str:
    if pool.capacity.is_listed(entry.slot_id):
        return "its host is blacklisted"
    count = pool.capacity.hosts.get(entry.hostname, 0)
    return f"its host has {count} slots now" if count else "its host is gone"


# Workers that have the state.


def _newest_version(entries: Sequence[Entry]) -> StateVersion:
    """The newest state that any of them has reported."""
    return max((entry.ready.state_version for entry in entries), default=StateVersion())


def state_source(pool: WorkerPool, chosen: Sequence[Entry]) -> Entry | None:
    """A worker that waits with a newer state than all of ``chosen``, if there is one.

    Its slot may be gone or blacklisted. Then it leaves as soon as others have its state.
    """
    newest = _newest_version(chosen)
    waiting = [entry for entry in pool.registry if entry.phase is Phase.READY]
    newer = [entry for entry in waiting if entry.ready.state_version > newest]
    return best_informed(newer, pool.world) if newer else None


def is_fit(pool: WorkerPool, chosen: Sequence[Entry], newest: Ready) -> bool:
    """Whether a world of ``chosen``, which all wait, loses no state that may still come.

    ``newest`` says whether there has been any state.
    """
    versions = [entry.ready.state_version for entry in chosen if entry.world == pool.world]
    known = [version for version in versions if version.has_state]
    # States of one world differ by a commit at most. A member that failed before the sync of this
    # world may have an older one, while an absent member has the newest.
    if any(version.world == pool.world or version >= newest.state_version for version in known):
        return True
    if any(entry.phase is Phase.LATE for entry in pool.registry) or _has_absent_member(pool):
        return False
    return _newest_version(chosen).has_state or not newest.state_version.has_state


def can_be_given_up(pool: WorkerPool, newest: Ready) -> bool:
    """Whether a member that does not answer may be given up: another one waits with the state."""
    waiting = [entry for entry in pool.registry if entry.phase is Phase.READY]
    is_new = not newest.state_version.has_state
    return bool(waiting) and (is_new or _newest_version(waiting).has_state)


def is_state_gone(pool: WorkerPool, newest: Ready) -> bool:
    """Whether no living worker, wherever it is, can have the state."""
    if pool.world == 0 or _has_absent_member(pool):
        return False
    rest = [entry for entry in pool.registry if entry.phase in (Phase.READY, Phase.LATE)]
    if any(e.phase is Phase.LATE or e.ready.state_version.has_state for e in rest):
        return False
    # Members that never began have nothing to lose, unless another worker had the state.
    return not pool.members() or newest.state_version.has_state


def without_last_holders(named: Sequence[Entry], members: Sequence[Entry]) -> list[Entry]:
    """The workers to exclude if most members cannot reach ``named``.

    That is ``named``, unless no other member has a state as new: then those that name them.
    """
    others = [entry for entry in members if entry not in named]
    if _newest_version(others) >= _newest_version(named):
        return list(named)
    numbers = {entry.number for entry in named}
    return [entry for entry in others if numbers & set(entry.ready.lost)]


def _has_absent_member(pool: WorkerPool) -> bool:
    """Whether a member of the current world does not wait for the next one."""
    return any(entry.phase is not Phase.READY for entry in pool.members())
