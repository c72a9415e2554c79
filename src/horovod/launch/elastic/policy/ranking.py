"""From the members of a world to their ranks. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from horovod.core.base.rank_info import RankInfo, rank_infos
from horovod.launch.elastic.policy.capacity import SlotId
from horovod.launch.elastic.policy.registry import Entry
from horovod.launch.model.hosts import node_of

__all__ = ["best_informed", "by_slot", "in_rank_order", "positions"]


def by_slot(entries: Sequence[Entry], hosts: Sequence[str]) -> list[Entry]:
    """Workers of a host together, and hosts of a node; else hosts in the order given."""
    position: dict[str, int] = {}
    for index, name in enumerate(hosts):
        position[name] = index
        position.setdefault(node_of(name), index)

    def key(entry: Entry) -> tuple[int, int, SlotId]:
        name = entry.slot_id.hostname
        last = len(hosts)
        return position.get(node_of(name), last), position.get(name, last), entry.slot_id

    return sorted(entries, key=key)


def best_informed(candidates: Sequence[Entry], world: int) -> Entry:
    """Who should be rank 0: the newest state, then whoever had the lowest rank in ``world``.

    Otherwise the first of ``candidates``.
    """

    def rank_of(entry: Entry) -> float:
        return entry.rank if world and entry.world == world else math.inf

    newest = max(entry.ready.state_version for entry in candidates)
    return min((e for e in candidates if e.ready.state_version == newest), key=rank_of)


def in_rank_order(members: Sequence[Entry], hosts: Sequence[str], first: Entry) -> list[Entry]:
    """``first`` is rank 0; the others of its host follow, then the other hosts as in ``hosts``."""
    others = [name for name in hosts if name != first.slot_id.hostname]
    ordered = by_slot(members, [first.slot_id.hostname, *others])
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
