"""Where in a Ray cluster workers have room: its nodes now, and what is free of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import ray
from ray._private.state import available_resources_per_node

from horovod.ray.placement import Share

__all__ = ["Node", "NodeDiscovery", "choose", "nodes_now"]


@dataclass(frozen=True)
class Node:
    """A node that lives: how many workers have room there at all, and in what is free."""

    node_id: str
    address: str
    slots: int
    free_slots: int = 0


def nodes_now(share: Share) -> list[Node]:
    """All nodes with room for at least one worker."""
    free = available_resources_per_node()
    found = [
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            share.fits_into(node["Resources"]),
            share.fits_into(free.get(node["NodeID"], {})),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return [node for node in found if node.slots]


def choose(
    nodes: Sequence[Node],
    found: Mapping[str, int],
    used: Mapping[str, int],
    resting: Collection[str],
    room: int,
) -> list[tuple[Node, int]]:
    """On which further nodes to reserve how many slots, ``room`` of them at most.

    ``found`` are the slots that the discovery allows, by address; ``used`` those of nodes, by id,
    where some are reserved already, and which take no more. Nodes with the most room come first.
    """
    left = dict(found)
    for node in nodes:
        left[node.address] = left.get(node.address, 0) - used.get(node.node_id, 0)
    chosen = []
    for node in sorted(nodes, key=lambda node: (-node.free_slots, node.address, node.node_id)):
        count = min(node.free_slots, left[node.address], room)
        if count > 0 and node.node_id not in used and node.node_id not in resting:
            chosen.append((node, count))
            left[node.address] -= count
            room -= count
    return chosen


class NodeDiscovery:
    """See ``HostDiscovery``: all nodes of the cluster."""

    def __init__(self, share: Share) -> None:
        self._share = share

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """How many workers each node has room for, if nothing else runs there, by its address."""
        slots: dict[str, int] = {}
        for node in nodes_now(self._share):
            slots[node.address] = slots.get(node.address, 0) + node.slots
        return slots
