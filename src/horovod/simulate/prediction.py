"""Many steps of a cluster, in which another rank is the slowest each time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from horovod.simulate.cluster import Cluster
from horovod.simulate.failures import Failures, Losses, losses_of
from horovod.simulate.step import Options, StepTime, simulate_step
from horovod.simulate.workload import Workload

STEPS = 100
_SEED = 1
_MOST_BYTES, _MOST_RANKS = 1 << 50, 10_000_000
_SLOWEST, _FASTEST = 4.0, 0.5  # no rank's step is drawn beyond these


@dataclass(frozen=True)
class Prediction:
    """The mean step of all ranks together.

    Attributes:
        ranks, hosts: of the cluster.
        step_s: its time.
        alone_s: the same step of a rank without others.
        stragglers_s: for the slowest rank's computing, beyond the usual.
        exposed_s: for reductions after the slowest rank has computed.
        reducing_s: all reductions, most of which run beside the backward pass.
        sent_bytes, messages: of a host.
        buckets: reductions in the step.
        samples: of one rank in a step; 0 if not known.
        losses: by hosts that fail, if that was asked; no other attribute includes them.
    """

    ranks: int
    hosts: int
    step_s: float
    alone_s: float
    stragglers_s: float
    exposed_s: float
    reducing_s: float
    sent_bytes: float
    messages: int
    buckets: int
    samples: float
    losses: Losses | None = None

    @property
    def efficiency(self) -> float:
        """Of a rank, against one without others."""
        return self.alone_s / self.step_s

    @property
    def lasting(self) -> float:
        """The efficiency of steps that no failure takes back."""
        return self.efficiency * (1.0 if self.losses is None else self.losses.useful)

    @property
    def samples_per_second(self) -> float:
        """Of all ranks; 0 if not known."""
        return self.ranks * self.samples / self.step_s


def predict(
    workload: Workload,
    cluster: Cluster,
    options: Options | None = None,
    jitter: float = 0.0,
    steps: int = STEPS,
    failures: Failures | None = None,
) -> Prediction:
    """The mean of ``steps`` steps.

    Args:
        workload: of each rank.
        cluster: where the ranks run.
        options: what a user can choose; the defaults are Horovod's.
        jitter: the standard deviation of a rank's time to compute a step, as a part of it. Ranks
            and steps are independent, and normally distributed.
        steps: how many are drawn; with the same seed each time.
        failures: of hosts, in an elastic job.

    Raises:
        ValueError: there are no gradients, no hosts or no ranks, or a number is not possible.
    """
    options = options or Options()
    _check(workload, cluster, options, jitter, steps)
    factors = _slowest_of(cluster.ranks, jitter, steps)
    found = [simulate_step(workload, cluster, options, factor) for factor in factors]
    if not math.isfinite(sum(step.duration_s for step in found)):
        raise ValueError(f"{workload.title}: a step on network {cluster.network.name} never ends")
    mean = _mean(workload, cluster, found)
    if failures is None:
        return mean
    return replace(mean, losses=losses_of(mean.step_s, cluster.hosts, failures))


def _check(
    workload: Workload, cluster: Cluster, options: Options, jitter: float, steps: int
) -> None:
    if not workload.gradients:
        raise ValueError(f"{workload.title}: no gradients; record some steps of training")
    if workload.size_bytes > _MOST_BYTES or not math.isfinite(workload.alone_s):
        found = f"{workload.size_bytes} bytes of gradients and a step of {workload.alone_s} s"
        raise ValueError(f"{workload.title}: {found} cannot be")
    if cluster.ranks > _MOST_RANKS:
        raise ValueError(f"at most {_MOST_RANKS} ranks: {cluster.ranks}")
    if not 0 <= options.fusion_threshold <= _MOST_BYTES:
        raise ValueError(f"the fusion threshold must be in 0 to 2**50: {options.fusion_threshold}")
    if cluster.hosts < 1 or cluster.ranks_per_host < 1:
        raise ValueError(f"{cluster.hosts} hosts of {cluster.ranks_per_host} ranks: 1 or more each")
    if not 0 <= jitter < 1:
        raise ValueError(f"the jitter is a part of a step, from 0 to below 1: {jitter}")
    if steps < 1:
        raise ValueError(f"steps must be 1 or more: {steps}")


def _slowest_of(ranks: int, jitter: float, steps: int) -> list[float]:
    """The largest of ``ranks`` normal factors, ``steps`` times, without drawing each of them.

    The largest of N has the N-th power of the distribution, so its quantile at u is that of one at
    u to the power of 1 / N.
    """
    if jitter == 0.0 or ranks < 1:
        return [1.0]
    uniform = np.random.default_rng(_SEED).random(steps)
    # Of the upper tail, since that of the largest of many is small.
    tails = -np.expm1(np.log(uniform) / ranks)
    quantiles = np.array([-NormalDist().inv_cdf(tail) for tail in tails])
    kept: list[float] = np.clip(1 + jitter * quantiles, _FASTEST, _SLOWEST).tolist()
    return kept


def _mean(workload: Workload, cluster: Cluster, found: list[StepTime]) -> Prediction:
    step_s = float(np.mean([step.duration_s for step in found]))
    computed_s = float(np.mean([step.compute_end_s for step in found]))
    return Prediction(
        ranks=cluster.ranks,
        hosts=cluster.hosts,
        step_s=step_s,
        alone_s=workload.alone_s,
        stragglers_s=computed_s - workload.compute_s,
        exposed_s=step_s - workload.update_s - computed_s,
        reducing_s=float(np.mean([step.reducing_s for step in found])),
        sent_bytes=float(np.mean([step.sent_bytes for step in found])),
        messages=round(float(np.mean([step.messages for step in found]))),
        buckets=round(float(np.mean([len(step.buckets) for step in found]))),
        samples=workload.samples,
    )
