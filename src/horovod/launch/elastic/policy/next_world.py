"""Who belongs to the next world, whether it can begin, and the answers to its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horovod.launch.elastic.policy.ranking import best_informed, by_slot, in_rank_order, positions
from horovod.launch.elastic.policy.registry import Entry, Phase
from horovod.launch.elastic.policy.worker_pool import WorkerPool
from horovod.rendezvous.identity.elastic_messages import HostUpdate, RankAssignment

__all__ = [
    "assignments",
    "candidates",
    "change",
    "is_complete_at_first",
    "is_continued",
    "is_stranded",
    "never_began",
    "ordered",
    "provisional_assignments",
    "removals",
]


def candidates(pool: WorkerPool, most: int | None) -> list[Entry]:
    """Who is in the next world if nobody else gets ready: survivors first."""
    survivors = [entry for entry in pool.members() if pool.is_usable(entry)]
    others = [entry for entry in pool.ready() if entry not in survivors]
    others.sort(key=lambda entry: not entry.ready.state_version.has_state)
    return [*survivors, *others][:most]


def is_complete_at_first(pool: WorkerPool, most: int | None) -> bool:
    """Whether all that the first world should have are ready; spares may not be."""
    first = by_slot(pool.usable(), pool.capacity.order)[:most]
    return all(entry.phase is not Phase.STARTING for entry in first)


def is_stranded(pool: WorkerPool) -> bool:
    """Whether no member of the current world may be in the next one."""
    return not any(pool.is_usable(entry) for entry in pool.members())


def change(pool: WorkerPool, min_np: int, max_np: int | None, *, is_urgent: bool) -> HostUpdate:
    """How the next world would differ; nothing while newcomers that belong to it start.

    If no member may stay, they go on until enough others can take their state over, unless it
    ``is_urgent`` to leave.
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
    # Too few to go on alone are going to wait for somebody who needs the state.
    if (ready and has_room) or (kind and len(staying) < min_np):
        kind |= HostUpdate.ADDED
    return kind


def never_began(pool: WorkerPool, chosen: Sequence[Entry]) -> bool:
    """Whether the current world failed, without a loss, before anybody took over its state."""
    members = [entry for entry in chosen if entry.world == pool.world]
    return (
        pool.world > 0
        and not pool.losses
        and all(entry.ready.state_version.world < pool.world for entry in chosen)
        and any(entry.ready.reason for entry in members)
    )


def is_continued(chosen: Sequence[Entry], world: int) -> bool:
    """Whether all have the same state already, since they left ``world`` together."""
    versions = {entry.ready.state_version for entry in chosen}
    stay = all(entry.ready.keeps_state and entry.world == world for entry in chosen)
    return world > 0 and stay and len(versions) == 1


def ordered(pool: WorkerPool, chosen: Sequence[Entry]) -> list[Entry]:
    """``chosen`` by their next ranks."""
    first = best_informed(chosen, pool.world)
    return in_rank_order(chosen, pool.capacity.order, first)


def assignments(
    by_rank: Sequence[Entry], world: int, updates: int, must_sync: bool
) -> dict[int, RankAssignment]:
    """What each member is told."""
    numbers = tuple(entry.number for entry in by_rank)
    infos = positions([entry.slot_id for entry in by_rank])
    return {
        number: RankAssignment(world, info, numbers, updates, must_sync)
        for number, info in zip(numbers, infos, strict=True)
    }


def provisional_assignments(
    pool: WorkerPool, entries: Sequence[Entry], updates: int
) -> dict[int, RankAssignment]:
    """What newcomers are told that the current world goes on without, and who start until then."""
    provisional_positions = pool.provisional_positions()
    found = {}
    for entry in entries:
        entry.rank_info = provisional_positions[entry.number]
        if entry.phase is not Phase.STARTING:
            entry.enter(Phase.STARTING, pool.now)
        found[entry.number] = RankAssignment(
            pool.world, entry.rank_info, updates=updates, is_provisional=True
        )
    return found


def removals(pool: WorkerPool, chosen: Sequence[Entry] = ()) -> Mapping[int, RankAssignment]:
    """What those are told, but for ``chosen``, that wait for seats and whose slots are gone."""
    removed = {}
    for entry in pool.registry:
        if entry.phase is Phase.READY and entry not in chosen and not pool.is_usable(entry):
            where = f"{entry.slot_id.hostname}[{entry.rank_info.local_rank}]"
            text = f"{where} was removed from the elastic job: {_why_unusable(pool, entry)}"
            removed[entry.number] = RankAssignment(removal=text)
    return removed


def _why_unusable(pool: WorkerPool, entry: Entry) -> str:
    if pool.capacity.is_listed(entry.slot_id):
        return "its host is blacklisted"
    count = pool.capacity.hosts.get(entry.slot_id.hostname, 0)
    return f"its host has {count} slots now" if count else "its host is gone"
