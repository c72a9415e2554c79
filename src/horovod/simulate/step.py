"""One step of all ranks, by events: gradients become ready, buckets form and run one by one.

Ranks that behave alike are one rank: what differs is only which of them is the slowest, and that is
drawn. So the cost does not depend on the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from horovod import _native
from horovod.simulate.cluster import Cluster
from horovod.simulate.collective_time import negotiation_s, reduction_s, traffic_of
from horovod.simulate.workload import Workload

FUSION_BYTES = 128 << 20


@dataclass(frozen=True)
class Options:
    """What a user can choose.

    Attributes:
        algorithm: of ``collective_time.ALGORITHMS``.
        fusion_threshold: the most bytes of a bucket of several tensors.
        wire: which part of the bytes travels between hosts; 0.5 for float16.
    """

    algorithm: str = "horovod"
    fusion_threshold: int = FUSION_BYTES
    wire: float = 1.0


@dataclass(frozen=True)
class Bucket:
    """Tensors that were reduced together."""

    start_s: float
    end_s: float
    size_bytes: int
    tensors: int


@dataclass(frozen=True)
class StepTime:
    """``compute_end_s``: of the slowest rank. ``sent_bytes``, ``messages``: of each host.

    They are counted for the engine's own algorithm only.
    """

    duration_s: float
    compute_end_s: float
    buckets: tuple[Bucket, ...]
    sent_bytes: float
    messages: int

    @property
    def reducing_s(self) -> float:
        """The time in which a bucket was under way."""
        return sum(bucket.end_s - bucket.start_s for bucket in self.buckets)


def simulate_step(
    workload: Workload, cluster: Cluster, options: Options, slowest: float = 1.0
) -> StepTime:
    """One step, in which the slowest rank computes ``slowest`` times as long as usual."""
    step = _Step(workload, cluster, options, slowest)
    while step.first < len(step.sizes):
        step.run_bucket()
    return step.outcome()


class _Step:
    """The state of a step: the gradients before ``first`` are reduced."""

    def __init__(
        self, workload: Workload, cluster: Cluster, options: Options, slowest: float
    ) -> None:
        self.workload, self.cluster, self.options = workload, cluster, options
        self.slowest = slowest
        self.agreed_s = negotiation_s(cluster)
        self.sizes = [gradient.size_bytes for gradient in workload.gradients]
        self.first = 0
        self.lost_s = 0.0  # by which reductions have delayed the backward pass
        self.free_s = 0.0
        self.buckets: list[Bucket] = []

    @property
    def computed_s(self) -> float:
        """When the slowest rank has computed all gradients."""
        return self.workload.compute_s * self.slowest + self.lost_s

    def ready_s(self, index: int) -> float:
        """When all ranks know that all have a gradient."""
        if not self.cluster.costs.overlap:
            return self.computed_s + self.agreed_s
        return self.workload.gradients[index].ready_s * self.slowest + self.lost_s + self.agreed_s

    def run_bucket(self) -> None:
        """Reduce what is ready, as one bucket, as soon as the one before is done."""
        start_s = max(self.free_s, self.ready_s(self.first))
        until, offered = self.first + 1, self.sizes[self.first]
        most = self.options.fusion_threshold  # beyond it nothing fits into the bucket
        while offered <= most and until < len(self.sizes) and self.ready_s(until) <= start_s:
            offered += self.sizes[until]
            until += 1
        ready = self.sizes[self.first : until]
        count = _native.bucket_length(ready, self.options.fusion_threshold)
        size_bytes = sum(ready[:count])
        end_s = start_s + _bucket_s(size_bytes, count, self.cluster, self.options)
        if start_s < self.computed_s:
            self.lost_s += self.cluster.costs.slowdown * (end_s - start_s)
        self.buckets.append(Bucket(start_s, end_s, size_bytes, count))
        self.free_s, self.first = end_s, self.first + count

    def outcome(self) -> StepTime:
        """Of all buckets."""
        duration_s = max(self.computed_s, self.free_s) + self.workload.update_s
        own = self.buckets if self.options.algorithm == "horovod" else []
        sent = [traffic_of(bucket.size_bytes, self.cluster) for bucket in own]
        return StepTime(
            duration_s,
            self.computed_s,
            tuple(self.buckets),
            sum(each.size_bytes for each in sent) * self.options.wire,
            sum(each.messages for each in sent),
        )


def _bucket_s(size_bytes: int, tensors: int, cluster: Cluster, options: Options) -> float:
    whole_s = reduction_s(size_bytes, tensors, cluster, options.algorithm)
    if options.wire == 1.0 or cluster.hosts == 1:
        return whole_s
    fewer = round(size_bytes * options.wire)
    inside = Cluster(1, cluster.ranks_per_host, cluster.network, cluster.costs)
    return max(
        reduction_s(fewer, tensors, cluster, options.algorithm),
        reduction_s(size_bytes, tensors, inside, options.algorithm),
    )
