"""The nodes of a Ray cluster with room for workers, and a placement group of their resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)


@dataclass(frozen=True)
class Share:
    """The resources of each worker; ``others`` are custom resources of Ray."""

    cpus: int = 1
    gpus: int = 0
    others: Mapping[str, float] = field(default_factory=dict)

    def times(self, count: int) -> dict[str, float]:
        """The resources of ``count`` workers, by Ray's names."""
        all_names = {"CPU": self.cpus, "GPU": self.gpus, **self.others}
        return {name: float(each * count) for name, each in all_names.items() if each}

    def fits_into(self, resources: Mapping[str, float]) -> int:
        """How many workers fit into ``resources``; none if a worker needs no resources."""
        wanted = self.times(1)
        return min((int(resources.get(name, 0) // wanted[name]) for name in wanted), default=0)

    def options(self, count: int = 1) -> dict[str, Any]:
        """The options of an actor with the resources of ``count`` workers."""
        return {
            "num_cpus": self.cpus * count,
            "num_gpus": self.gpus * count,
            "resources": {name: each * count for name, each in self.others.items()},
        }


class Shape(NamedTuple):
    """The number of workers, their resources, and the number of nodes (0: as few as possible)."""

    workers: int
    hosts: int
    share: Share

    @property
    def per_bundle(self) -> int:
        """Workers of a bundle: all workers of a host, or one."""
        return self.workers // self.hosts if self.hosts else 1

    @property
    def bundles(self) -> list[dict[str, float]]:
        """A bundle for each host, or for each worker."""
        return [self.share.times(self.per_bundle) for _ in range(self.hosts or self.workers)]

    @property
    def strategy(self) -> str:
        """Ray's strategy for the bundles."""
        return "STRICT_SPREAD" if self.hosts else "PACK"

    def objection(self, nodes: Sequence[str]) -> str:
        """Why workers on these nodes (one item per worker) do not fit; empty if they do."""
        found = Counter(nodes)
        if not self.hosts or set(found.values()) == {self.per_bundle}:
            return ""
        return (
            f"{self.workers} workers on {self.hosts} hosts, {self.per_bundle} on each, were asked "
            f"for; the current placement group has them on {len(found)} nodes, "
            f"{', '.join(map(str, found.values()))} on each. Give num_workers, or "
            "use_current_placement_group=False"
        )


class Placement:
    """A new placement group for ``shape``, or the current one; blocks until it is ready.

    Raises:
        TimeoutError: the cluster did not have these resources within ``timeout_s``.
    """

    def __init__(self, shape: Shape, timeout_s: float, *, use_current: bool) -> None:
        self._shape = shape
        current = get_current_placement_group() if use_current else None
        self._is_own = current is None
        self.group: PlacementGroup = current or self._reserve(timeout_s)

    def _reserve(self, timeout_s: float) -> PlacementGroup:
        bundles = self._shape.bundles
        group = placement_group(bundles, strategy=self._shape.strategy)
        ready, _ = ray.wait([group.ready()], timeout=timeout_s)
        if not ready:
            remove_placement_group(group)
            raise TimeoutError(
                f"placement group for {self._shape.workers} workers: after {timeout_s:g} s the "
                f"cluster has no room for {len(bundles)} bundles {bundles[0]} "
                f"({self._shape.strategy}). Resources of all nodes: "
                f"{_counts(ray.cluster_resources(), bundles[0])}; free: "
                f"{_counts(ray.available_resources(), bundles[0])}. Free some, start fewer "
                "workers, or wait longer (placement_group_timeout_s)"
            )
        return group

    def options(self, worker: int) -> dict[str, Any]:
        """The options of a worker's actor."""
        index = worker // self._shape.per_bundle if self._is_own else -1
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self.group, placement_group_bundle_index=index
        )
        return {**self._shape.share.options(), "scheduling_strategy": strategy}

    def describe(self) -> str:
        """The placement group, for messages."""
        if self._is_own:
            return "a placement group of their own"
        return f"the current placement group, whose bundles are {self.group.bundle_specs}"

    def release(self) -> None:
        """Remove the placement group, unless it is the current one."""
        if self._is_own:
            remove_placement_group(self.group)


def beside_caller() -> dict[str, Any]:
    """The options of an actor or task that helps the caller and needs no resources.

    It runs on the caller's node (for a client, the node of its server), so the loss of another node
    does not end it.
    """
    here = ray.get_runtime_context().get_node_id()
    address = next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)
    return {
        "num_cpus": 0,
        # Any node may place an actor without resources. A new node that does not know this one yet
        # would keep it. This small part of the node's own resource is always free.
        "resources": {f"node:{address}": 0.001},
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True),
    }


def _counts(resources: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in names)


class Node(NamedTuple):
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
