"""From the members of a world to their ranks. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from horovod.launch.elastic.capacity import Spot
from horovod.launch.elastic.roll import Entry
from horovod.launch.hosts import Slot

__all__ = ["best_informed", "by_spot", "in_rank_order", "places"]


def by_spot(entries: Sequence[Entry], hosts: Sequence[str]) -> list[Entry]:
    """Workers of a host together, hosts in the order given."""
    position = {name: index for index, name in enumerate(hosts)}
    return sorted(entries, key=lambda e: (position.get(e.spot.hostname, len(hosts)), e.spot))


def best_informed(candidates: Sequence[Entry], world: int) -> Entry:
    """Who should be rank 0: the newest state, then whoever had the lowest rank in ``world``.

    Otherwise the first of ``candidates``.
    """

    def rank_of(entry: Entry) -> float:
        return entry.rank if world and entry.world == world else math.inf

    newest = max(entry.ready.standing for entry in candidates)
    return min((e for e in candidates if e.ready.standing == newest), key=rank_of)


def in_rank_order(members: Sequence[Entry], hosts: Sequence[str], first: Entry) -> list[Entry]:
    """``first`` is rank 0; the others of its host follow, then the other hosts as in ``hosts``."""
    others = [name for name in hosts if name != first.spot.hostname]
    ordered = by_spot(members, [first.spot.hostname, *others])
    return [first, *(entry for entry in ordered if entry is not first)]


def places(spots: Sequence[Spot]) -> list[Slot]:
    """All numbers of the worlds whose ranks are in these spots, by rank.

    ``local_rank`` counts on a host by slot, whoever of them has the lowest rank.
    """
    by_host: dict[str, list[int]] = {}
    for spot in spots:
        by_host.setdefault(spot.hostname, []).append(spot.slot_index)
    for indices in by_host.values():
        indices.sort()
    return [_place(rank, spot, by_host, len(spots)) for rank, spot in enumerate(spots)]


def _place(rank: int, spot: Spot, by_host: dict[str, list[int]], size: int) -> Slot:
    local_rank = by_host[spot.hostname].index(spot.slot_index)
    column = [name for name, indices in by_host.items() if len(indices) > local_rank]
    return Slot(
        hostname=spot.hostname,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=len(by_host[spot.hostname]),
        cross_rank=column.index(spot.hostname),
        cross_size=len(column),
    )
