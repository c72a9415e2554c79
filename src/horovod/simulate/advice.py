"""What would make the steps of a cluster shorter: the same prediction with one change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from horovod.core.base.engine_settings import LINK_SHARES
from horovod.simulate.cluster import Cluster
from horovod.simulate.failures import Failures, losses_of
from horovod.simulate.prediction import Prediction, predict
from horovod.simulate.step import Options
from horovod.simulate.workload import Gradient, Workload

_LEAST_GAIN, _MOST_GAIN = 0.01, 1e3
_FORMATS = {"fp16": 0.5, "int8": LINK_SHARES["int8"], "int4": LINK_SHARES["int4"]}
_THRESHOLDS = (16 << 20, 512 << 20)


@dataclass(frozen=True)
class Advice:
    """``gain``: by which part all ranks together become faster, per sample."""

    text: str
    gain: float
    after: Prediction


def advise(
    workload: Workload,
    cluster: Cluster,
    options: Options,
    jitter: float,
    failures: Failures | None = None,
) -> list[Advice]:
    """The changes that gain a hundredth or more, the best first."""
    now = predict(workload, cluster, options, jitter, failures=failures)
    found = _about_failures(now, cluster, failures)
    for text, other, place, chosen, batches in _changes(workload, cluster, options):
        after = predict(other, place, chosen, jitter, failures=failures)
        gain = now.step_s / after.step_s * batches - 1
        if gain >= _LEAST_GAIN:
            found.append(Advice(text, gain, after))
    return sorted(found, key=lambda each: -each.gain)


def _about_failures(now: Prediction, cluster: Cluster, failures: Failures | None) -> list[Advice]:
    """What more or rarer commits and better hosts gain."""
    losses = now.losses
    if failures is None or losses is None or losses.useful == 0:
        return []
    rarer = replace(failures, mtbf_s=2 * failures.mtbf_s)
    better = replace(now, losses=losses_of(now.step_s, cluster.hosts, rarer))
    steps = f"{losses.commit_steps} step{'s' if losses.commit_steps > 1 else ''}"
    useful = losses.useful_each_step
    found = [
        Advice("hosts that fail half as often", better.lasting / now.lasting - 1, better),
        Advice(
            f"state.commit() every {steps} instead of every step",
            losses.useful / useful - 1 if useful else _MOST_GAIN,
            now,
        ),
    ]
    return [each for each in found if each.gain >= _LEAST_GAIN]


_Change = tuple[str, Workload, Cluster, Options, float]


def _changes(workload: Workload, cluster: Cluster, options: Options) -> Iterator[_Change]:
    """What to try, and how many samples a step has then, as a multiple."""
    if cluster.hosts > 1 and options.wire == 1.0:
        for name, wire in _FORMATS.items():
            text = f"compression={name} between hosts"
            yield text, workload, cluster, replace(options, wire=wire), 1.0
    if options.algorithm == "horovod" and cluster.hosts > 1:
        for name in ("ring", "tree"):
            text = f"a data plane that uses a {name} between hosts, such as NCCL's or MPI's"
            yield text, workload, cluster, replace(options, algorithm=name), 1.0
    for threshold in _THRESHOLDS:
        text = f"HOROVOD_FUSION_THRESHOLD={threshold}"
        yield text, workload, cluster, replace(options, fusion_threshold=threshold), 1.0
    text = "a batch twice as large on each rank, or backward_passes_per_step=2"
    yield text, _twice(workload), cluster, options, 2.0
    if cluster.hosts > 1:
        network = replace(cluster.network, bandwidth=4 * cluster.network.bandwidth)
        faster = replace(cluster, network=network)
        yield "a network four times as fast", workload, faster, options, 1.0


def _twice(workload: Workload) -> Workload:
    """The gradients of twice the samples, which come later."""
    late_s = workload.compute_s
    gradients = [
        Gradient(each.name, each.size_bytes, each.ready_s + late_s) for each in workload.gradients
    ]
    return replace(
        workload,
        gradients=gradients,
        compute_s=2 * workload.compute_s,
        samples=2 * workload.samples,
    )
