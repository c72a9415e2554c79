"""Which resources of the cluster the workers of a job get, as a placement group of Ray's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
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

__all__ = ["Placement", "Shape", "Share", "beside_caller"]


@dataclass(frozen=True)
class Share:
    """What each worker has of the cluster; ``others`` are resources that somebody has named."""

    cpus: int = 1
    gpus: int = 0
    others: Mapping[str, float] = field(default_factory=dict)

    def times(self, count: int) -> dict[str, float]:
        """What so many workers have, by Ray's names."""
        all_names = {"CPU": self.cpus, "GPU": self.gpus, **self.others}
        return {name: float(each * count) for name, each in all_names.items() if each}

    def fits_into(self, resources: Mapping[str, float]) -> int:
        """How many workers have room where there are these; those without a share fit nowhere."""
        wanted = self.times(1)
        return min((int(resources.get(name, 0) // wanted[name]) for name in wanted), default=0)

    def options(self, count: int = 1) -> dict[str, Any]:
        """What an actor is started with that has the shares of so many workers."""
        return {
            "num_cpus": self.cpus * count,
            "num_gpus": self.gpus * count,
            "resources": {name: each * count for name, each in self.others.items()},
        }


@dataclass(frozen=True)
class Shape:
    """How many workers, with what each, and on how many nodes (0: as few as it takes)."""

    workers: int
    hosts: int = 0
    share: Share = field(default_factory=Share)

    @property
    def per_bundle(self) -> int:
        """How many workers share a bundle: those of a host, or each has its own."""
        return self.workers // self.hosts if self.hosts else 1

    @property
    def bundles(self) -> list[dict[str, float]]:
        """One for each host, or each worker."""
        return [self.share.times(self.per_bundle) for _ in range(self.hosts or self.workers)]

    @property
    def strategy(self) -> str:
        """How Ray is to spread the bundles over nodes."""
        return "STRICT_SPREAD" if self.hosts else "PACK"

    def objection(self, nodes: Sequence[str]) -> str:
        """What is wrong with workers on these nodes, one for each; empty if nothing is."""
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
    """A placement group for ``shape``, or the one that this process runs in; blocks until ready.

    Raises:
        TimeoutError: the cluster has not had these resources within ``timeout_s``.
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
        """What the actor of a worker is started with."""
        index = worker // self._shape.per_bundle if self._is_own else -1
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self.group, placement_group_bundle_index=index
        )
        return {**self._shape.share.options(), "scheduling_strategy": strategy}

    def describe(self) -> str:
        """Where the workers have their resources from, for messages."""
        if self._is_own:
            return "a placement group of their own"
        return f"the current placement group, whose bundles are {self.group.bundle_specs}"

    def release(self) -> None:
        """Give the resources back, if they were reserved here."""
        if self._is_own:
            remove_placement_group(self.group)


def beside_caller() -> dict[str, Any]:
    """What an actor or task is started with that has no share and serves the caller.

    It is on the caller's node, a client's is that of its server: no other node takes it along.
    """
    here = ray.get_runtime_context().get_node_id()
    address = next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)
    return {
        "num_cpus": 0,
        # What needs nothing is placed by any node, also by a new one that has not heard of this one
        # yet and takes it itself. This much of the node's own resource is never short.
        "resources": {f"node:{address}": 0.001},
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True),
    }


def _counts(resources: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in names)
