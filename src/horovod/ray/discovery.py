"""The nodes of a Ray cluster that have room for workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import ray
from ray._private.state import available_resources_per_node

from horovod.ray.placement import Share


@dataclass(frozen=True)
class Node:
    """An alive node: workers that fit into its resources, and into its free resources."""

    node_id: str
    address: str
    slots: int
    free_slots: int = 0


def nodes_now(share: Share) -> list[Node]:
    """All alive nodes whose resources fit at least one worker."""
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
    excluded: Collection[str],
    room: int,
) -> list[tuple[Node, int]]:
    """The nodes to reserve next, with the number of slots on each; at most ``room`` slots.

    ``found`` has the slots that the discovery allows, by address. ``used`` has the reserved slots
    of nodes, by id; no more are reserved there, nor on ``excluded`` nodes. Nodes with the most free
    slots come first.
    """
    left = dict(found)
    for node in nodes:
        left[node.address] = left.get(node.address, 0) - used.get(node.node_id, 0)
    chosen = []
    for node in sorted(nodes, key=lambda node: (-node.free_slots, node.address, node.node_id)):
        count = min(node.free_slots, left[node.address], room)
        if count > 0 and node.node_id not in used and node.node_id not in excluded:
            chosen.append((node, count))
            left[node.address] -= count
            room -= count
    return chosen


class NodeDiscovery:
    """See ``HostDiscovery``: all nodes of the cluster."""

    def __init__(self, share: Share) -> None:
        self._share = share

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The workers that fit on each node if nothing else runs there, by its address."""
        slots: dict[str, int] = {}
        for node in nodes_now(self._share):
            slots[node.address] = slots.get(node.address, 0) + node.slots
        return slots
