"""How long an allreduce of one bucket takes, by algorithm, and what it sends.

``horovod`` is the engine's own: a sum in the memory of each host, an exchange between the owners of
each part, an allgather in the memory. It is cut as the engine cuts it (``_native.cluster_cut``), so
the bytes and messages are exact. ``ring`` and ``tree`` are those of NCCL, for comparison;
``hierarchical`` and ``torus`` are those of publications.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from horovod import _native
from horovod.simulate.cluster import Cluster, Costs

CACHED_BYTES = 1 << 20  # of a bucket that stays in a processor's cache
UNCACHED_BYTES = 64 << 20  # of one of which nearly nothing does


@dataclass(frozen=True)
class Traffic:
    """What one host sends for an allreduce: ``trips`` follow each other, ``chunks`` overlap."""

    size_bytes: float
    messages: int
    trips: int
    chunks: int


def traffic_of(size_bytes: int, cluster: Cluster) -> Traffic:
    """What a host sends for an allreduce by the engine's own algorithm."""
    others, owners = cluster.hosts - 1, cluster.ranks_per_host
    if others == 0 or size_bytes == 0:
        return Traffic(0, 0, 0, 1)
    cut = _native.cluster_cut(size_bytes, owners, cluster.hosts)
    trips = 1 if cut.one_step else 2
    each = others if cut.one_step else 2 * others / cluster.hosts
    return Traffic(size_bytes * each, trips * others * owners * cut.chunks, trips, cut.chunks)


def negotiation_s(cluster: Cluster) -> float:
    """From the last rank that has a tensor until all know it: a message up the tree and one down.

    Inside a host it is a word in shared memory.
    """
    levels = math.ceil(math.log2(cluster.hosts))
    network = cluster.network
    return 2 * levels * (network.latency_s + 2 * network.message_s)


def reduction_s(size_bytes: int, tensors: int, cluster: Cluster, algorithm: str) -> float:
    """The time of one bucket.

    Raises:
        ValueError: no such algorithm.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}")
    costs = cluster.costs
    of_tensor_s = costs.tensor_s + (costs.link_tensor_s if cluster.hosts > 1 else 0.0)
    fixed_s = costs.bucket_s + tensors * of_tensor_s
    if cluster.ranks == 1:
        return fixed_s
    return fixed_s + ALGORITHMS[algorithm](size_bytes, cluster)


def _inside_s(size_bytes: float, cluster: Cluster) -> float:
    """Rings inside a host; the cost is that of two ranks, which copy half."""
    ranks = cluster.ranks_per_host
    return size_bytes * cluster.costs.byte_s * 2 * (ranks - 1) / ranks


def _in_memory_s(size_bytes: float, cluster: Cluster) -> float:
    """A sum in the memory that ranks share: each reads a tensor, and copies what others summed.

    The cost is that of two ranks, which read one tensor and copy half of one.
    """
    ranks = cluster.ranks_per_host
    if ranks == 1:
        return 0.0
    return size_bytes * _byte_s(size_bytes, cluster.costs) * (1 + (ranks - 1) / ranks) / 1.5


def _byte_s(size_bytes: float, costs: Costs) -> float:
    """Between the two sizes less and less of a bucket is in the cache."""
    doublings = math.log2(max(1.0, size_bytes / CACHED_BYTES))
    share = min(1.0, doublings / math.log2(UNCACHED_BYTES / CACHED_BYTES))
    cached_s = min(costs.byte_s, costs.cached_byte_s)
    return cached_s + share * (costs.byte_s - cached_s)


def _horovod(size_bytes: int, cluster: Cluster) -> float:
    inside_s = _in_memory_s(size_bytes, cluster)
    if cluster.hosts == 1:
        return inside_s
    traffic, network = traffic_of(size_bytes, cluster), cluster.network
    # Each rank serves the links of its own part, with the thread that sums in memory: the two add
    # up. What they do overlaps with the wire.
    work_s = traffic.size_bytes * cluster.costs.link_byte_s + traffic.messages * network.message_s
    thread_s = inside_s + work_s / cluster.ranks_per_host
    wire_s = traffic.size_bytes / network.bandwidth
    longer_s, shorter_s = max(thread_s, wire_s), min(thread_s, wire_s)
    return longer_s + shorter_s / traffic.chunks + traffic.trips * network.latency_s


def _ring(size_bytes: int, cluster: Cluster) -> float:
    """One ring through all ranks: each link between hosts carries all but a share, twice."""
    ranks, network, costs = cluster.ranks, cluster.network, cluster.costs
    bytes_sent = 2 * size_bytes * (ranks - 1) / ranks
    hop_s = network.latency_s * cluster.hosts + costs.bucket_s / 10 * (ranks - cluster.hosts)
    slowest = max(1 / network.bandwidth if cluster.hosts > 1 else 0.0, costs.byte_s / 2)
    return bytes_sent * slowest + 2 * hop_s


def _tree(size_bytes: int, cluster: Cluster) -> float:
    """Two binary trees of hosts, each for a half: the depth grows with the logarithm."""
    network = cluster.network
    levels = math.ceil(math.log2(cluster.hosts))
    wire_s = 2 * size_bytes / network.bandwidth if levels else 0.0
    return max(wire_s, _inside_s(size_bytes, cluster)) + 2 * levels * network.latency_s


def _hierarchical(size_bytes: int, cluster: Cluster) -> float:
    """A sum inside each host, then rings of hosts, one for the part of each rank, then a gather."""
    return _of_rings(size_bytes, cluster, 2 * (cluster.hosts - 1))


def _torus(size_bytes: int, cluster: Cluster) -> float:
    """The same with hosts in rows and columns: rings of a row, of a column, and of a row again.

    The links carry as many bytes as with one ring, in far fewer hops (arXiv 1811.05233).
    """
    columns = math.isqrt(cluster.hosts)
    rows = math.ceil(cluster.hosts / columns)
    return _of_rings(size_bytes, cluster, 2 * (rows - 1) + 2 * (columns - 1))


def _of_rings(size_bytes: int, cluster: Cluster, hops: int) -> float:
    """Each stage begins when the one before has ended. The hops of all ranks go on side by side."""
    network, ranks = cluster.network, cluster.ranks_per_host
    bytes_sent = 2 * size_bytes * (cluster.hosts - 1) / cluster.hosts
    wire_s = bytes_sent / network.bandwidth
    work_s = (bytes_sent * cluster.costs.link_byte_s) / ranks + hops * network.message_s
    return _inside_s(size_bytes, cluster) + max(wire_s, work_s) + hops * network.latency_s


ALGORITHMS: dict[str, Callable[[int, Cluster], float]] = {
    "hierarchical": _hierarchical,
    "horovod": _horovod,
    "ring": _ring,
    "torus": _torus,
    "tree": _tree,
}
