"""From the members of a world to their ranks. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from horovod.launch.elastic.policy.capacity import WorkerSpec
from horovod.launch.elastic.policy.registry import Entry
from horovod.launch.model.hosts import Slot, node_of

__all__ = ["best_informed", "by_spot", "in_rank_order", "places"]


def by_spot(entries: Sequence[Entry], hosts: Sequence[str]) -> list[Entry]:
    """Workers of a host together, and hosts of a node; else hosts in the order given."""
    position: dict[str, int] = {}
    for index, name in enumerate(hosts):
        position[name] = index
        position.setdefault(node_of(name), index)

    def key(entry: Entry) -> tuple[int, int, WorkerSpec]:
        name = entry.spot.hostname
        last = len(hosts)
        return position.get(node_of(name), last), position.get(name, last), entry.spot

    return sorted(entries, key=key)


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


def places(spots: Sequence[WorkerSpec]) -> list[Slot]:
    """All numbers of the worlds whose ranks are in these spots, by rank.

    ``local_rank`` counts on a node by spot, whoever of them has the lowest rank.
    """
    by_node: dict[str, list[WorkerSpec]] = {}
    for spot in spots:
        by_node.setdefault(node_of(spot.hostname), []).append(spot)
    for found in by_node.values():
        found.sort()
    return [_place(rank, spot, by_node, len(spots)) for rank, spot in enumerate(spots)]


def _place(rank: int, spot: WorkerSpec, by_node: dict[str, list[WorkerSpec]], size: int) -> Slot:
    node = node_of(spot.hostname)
    local_rank = by_node[node].index(spot)
    column = [name for name, found in by_node.items() if len(found) > local_rank]
    return Slot(
        hostname=spot.hostname,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=len(by_node[node]),
        cross_rank=column.index(node),
        cross_size=len(column),
    )
