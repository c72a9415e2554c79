"""``horovod.simulate`` against this machine, whose hosts are namespaces.

Calibrated as ``horovodrun --calibrate`` does it, inside a host of 2 ranks and between 2 hosts of 1
rank without a limit on the links, and by 4 bytes between 2 hosts of 2 ranks, which have no cores of
their own. Everything else is predicted first and measured then: allreduces, and training steps of
three models of ``training.py``, whose computing is that of as many ranks without communication. All
ranks share the cores of this machine, which the model knows (``on_cores``). A measured time is the
median over rounds of the slowest rank's. The allreduces of small tensors are measured by two sets
of processes: no prediction can be closer than they are to each other. Needs root.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from os import cpu_count, getloadavg

from collectives import Work, prepare
from command_line import make_parser
from on_hosts import BURST_BYTES, RanksOnHosts, SshServers, open_hosts
from on_hosts import Network as Hosts
from report import OURS
from training_loop import MODELS
from worker_groups import GroupSpec, WorkerGroup, measure_and_release, open_groups

from horovod.simulate import Cluster, Costs, Gradient, Network, Options, Workload, on_cores
from horovod.simulate.calibration import Measured, costs_from, with_network
from horovod.simulate.step import simulate_step

_CORES = cpu_count() or 1
_SPEC = GroupSpec(OURS, "horovodrun", "horovod")
_ALONE = GroupSpec("alone", "processes", "alone")
_SMALL, _CACHED, _LARGE = Work.parse("4B"), Work.parse("1MB"), Work.parse("64MB")
_MANY = Work.parse("1000x4KB")
_WORKS = (_SMALL, Work.parse("64KB"), _CACHED, Work.parse("16MB"), _LARGE, _MANY)
_SMALL_WORKS = (_SMALL, _WORKS[1], _MANY)
_KNOWN = (_SMALL, _CACHED, _LARGE, _MANY)
_TRAINED = list(MODELS)[:3]
_CALIBRATED = {(1, 2): _KNOWN, (2, 1): _KNOWN, (2, 2): (_SMALL,)}  # without limits
_TOPOLOGIES = (*_CALIBRATED, (1, 4), (4, 1), (4, 2), (8, 1))
_KINDS = {
    "large allreduces": ["1MB", "16MB", "64MB"],
    "small allreduces": [work.label for work in _SMALL_WORKS],
    "training steps": _TRAINED,
}
_LIMITS: tuple[int | None, ...] = (None, 1000, 100)  # Mbit/s
_MOST_S = 1.5  # of one call; what is predicted to take longer is not measured
_PAYLOAD = 0.94  # of a limit, without headers
_UNLIMITED = 1e12


@dataclass(frozen=True)
class _Place:
    """Hosts, ranks on each of them, and the limit of each host's link."""

    hosts: int
    ranks: int
    mbit_per_s: int | None

    def cluster(self, link: Network, costs: Costs) -> Cluster:
        """For the model."""
        if self.mbit_per_s is not None:
            link = replace(link, bandwidth=_PAYLOAD * self.mbit_per_s * 1e6 / 8)
        return Cluster(self.hosts, self.ranks, link, costs)


@dataclass(frozen=True)
class _Case:
    """One allreduce, many at once, or a training step."""

    place: _Place
    label: str
    predicted_s: float
    measured: tuple[float, ...]  # seconds, by each set of processes

    @property
    def measured_s(self) -> float:
        """The mean."""
        return statistics.mean(self.measured)

    @property
    def error(self) -> float:
        """Of the prediction, as a part of what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def spread(self) -> float:
        """By which part the measured times differ."""
        return max(self.measured) / min(self.measured) - 1

    @property
    def line(self) -> str:
        """For people."""
        place = self.place
        limit = f"{place.mbit_per_s} Mbit/s" if place.mbit_per_s else "unlimited"
        times = f"{1e3 * self.measured_s:10.3f} ms {1e3 * self.predicted_s:10.3f} ms"
        what = f"{place.hosts} x {place.ranks}  {self.label:29} {limit:12}"
        spread = f"  measured again {self.spread:4.0%}" if len(self.measured) > 1 else ""
        return f"{what}{times} {self.error:+7.0%}{spread}"

    @property
    def shares_cores(self) -> bool:
        """Whether there are more ranks than cores."""
        return self.place.hosts * self.place.ranks > _CORES


def main() -> int:
    args = make_parser(__doc__, "one round of each, and fewer hosts").parse_args()
    topologies = ((1, 2), (2, 1), (4, 1)) if args.quick else _TOPOLOGIES
    with open_hosts(max(hosts for hosts, _ in topologies)) as (network, servers):
        inside, between, shared = (
            _measured(network, servers, _Place(*each, None), works, args.quick)
            for each, works in _CALIBRATED.items()
        )
        costs, link = _calibrated(_known(inside), _known(between), statistics.mean(shared[_SMALL]))
        print(f"calibrated: {costs}\n{link}\nload {getloadavg()[0]:.1f}", flush=True)
        steps = _steps_alone(topologies, args.quick)
        cases = []
        for case in _cases(network, servers, topologies, costs, link, steps, args.quick):
            print(case.line, flush=True)
            cases.append(case)
    _print_summary(cases)
    return 0


def _cases(
    network: Hosts,
    servers: SshServers,
    topologies: tuple[tuple[int, int], ...],
    costs: Costs,
    link: Network,
    steps: dict[int, list[Workload]],
    is_quick: bool,
) -> Iterator[_Case]:
    for hosts, ranks in topologies:
        for limit in _LIMITS if hosts > 1 else _LIMITS[:1]:
            place = _Place(hosts, ranks, limit)
            cluster = place.cluster(link, costs)
            known = () if limit else _CALIBRATED.get((hosts, ranks), ())
            predicted = {
                work: predicted_s
                for work in _WORKS
                if work not in known and (predicted_s := _allreduce_s(work, cluster)) <= _MOST_S
            }
            measured = _measured(network, servers, place, tuple(predicted), is_quick)
            for work, seconds in measured.items():
                yield _Case(place, work.label, predicted[work], seconds)
            expected = {each.title: _step_s(each, cluster) for each in steps[hosts * ranks]}
            for model, step_s in _trained(network, servers, place, is_quick, expected):
                yield _Case(place, model, expected[model], (step_s,))


@contextmanager
def _ranks(
    network: Hosts, servers: SshServers, place: _Place, loop: str
) -> Iterator[list[WorkerGroup]]:
    """The ranks of a place, whose links have its limit."""
    part = _Part(network, place.hosts)
    with (
        closing(RanksOnHosts(part, servers, place.ranks)) as start,  # type: ignore[arg-type]
        open_groups([_SPEC], place.hosts * place.ranks, loop, start) as groups,
    ):
        for host in part.hosts if place.mbit_per_s else ():
            host.limit_rate(place.mbit_per_s)
        yield groups
        for host in part.hosts if place.mbit_per_s else ():
            host.limit_rate(None)


def _measured(
    network: Hosts,
    servers: SshServers,
    place: _Place,
    works: Sequence[Work],
    is_quick: bool,
) -> dict[Work, tuple[float, ...]]:
    """The seconds of each work, by each set of processes."""
    times: dict[Work, tuple[float, ...]] = {}
    for taking_part in (works, [work for work in works if work in _SMALL_WORKS]):
        with _ranks(network, servers, place, "collective_loop:CollectiveLoop") as groups:
            for work in taking_part:
                for group in groups:
                    prepare(group, work, place.hosts * place.ranks)
                times[work] = (*times.get(work, ()), _median(groups, is_quick, 0.1))
    return times


def _trained(
    network: Hosts,
    servers: SshServers,
    place: _Place,
    is_quick: bool,
    expected: dict[str, float],
) -> Iterator[tuple[str, float]]:
    """Each model whose step does not take too long, and the seconds of a step."""
    with _ranks(network, servers, place, "training_loop:TrainingLoop") as groups:
        for model, predicted_s in expected.items():
            if predicted_s <= _MOST_S:
                for group in groups:
                    group.call("prepare", model=model)
                yield model, _median(groups, is_quick, 0.5)


def _steps_alone(
    topologies: tuple[tuple[int, int], ...], is_quick: bool
) -> dict[int, list[Workload]]:
    """By number of ranks: the step of each model while as many compute, none of which waits."""
    steps: dict[int, list[Workload]] = {}
    for ranks in {hosts * ranks for hosts, ranks in topologies}:
        with open_groups([_ALONE], ranks, "training_loop:TrainingLoop") as groups:
            for model in _TRAINED:
                for group in groups:
                    group.call("prepare", model=model)
                step_s = _median(groups, is_quick, 0.5)
                steps.setdefault(ranks, []).append(_step_of(model, step_s))
    return steps


def _step_of(model: str, step_s: float) -> Workload:
    build, _, _ = MODELS[model]
    sizes = [parameter.numel() * 4 for parameter in build().parameters()]
    gradients = [Gradient(str(index), size, step_s) for index, size in enumerate(reversed(sizes))]
    return Workload(model, gradients, step_s)


def _median(groups: Sequence[WorkerGroup], is_quick: bool, loop_s: float) -> float:
    (times,) = measure_and_release(groups, is_quick, loop_s, loop_s / 2).values()
    return statistics.median(times)


class _Part:
    """The first hosts of a network."""

    def __init__(self, network: Hosts, count: int) -> None:
        self.hosts = network.hosts[:count]


def _known(times: dict[Work, tuple[float, ...]]) -> Measured:
    small_s, cached_s, large_s, many_s = (statistics.mean(times[work]) for work in _KNOWN)
    large_bytes, many_bytes = _bytes(_LARGE), _bytes(_MANY)
    return Measured(small_s, cached_s, large_s, large_bytes, many_s, _MANY.tensor_count, many_bytes)


def _calibrated(inside: Measured, between: Measured, shared_s: float) -> tuple[Costs, Network]:
    """The costs, and a link whose bytes cost nothing but the time of processors."""
    costs, link = with_network(between, costs_from(inside, False, "calibrated"), "namespaces")
    costs = replace(costs, link_byte_s=1 / link.bandwidth, wake_s=0.0)
    link = replace(link, bandwidth=_UNLIMITED, message_s=1e-7)
    # Three messages, one after the other, each of which wakes a rank.
    lacking_s = shared_s - _allreduce_s(_SMALL, Cluster(2, 2, link, costs))
    factor = max(1.0, 4 / _CORES)
    return replace(costs, wake_s=max(0.0, lacking_s / 3 / factor)), link


def _bytes(work: Work) -> int:
    return work.element_count * 4 * work.tensor_count


def _allreduces(work: Work) -> Workload:
    gradients = [
        Gradient(str(index), work.element_count * 4, 0.0) for index in range(work.tensor_count)
    ]
    return Workload(work.label, gradients, 1e-9)


def _allreduce_s(work: Work, cluster: Cluster) -> float:
    """Of many in a row: while nothing travels, a limit saves bytes that then pass at once."""
    step = simulate_step(_allreduces(work), on_cores(cluster, _CORES), Options())
    wire_s = step.sent_bytes / cluster.network.bandwidth
    at_once_s = BURST_BYTES / cluster.network.bandwidth
    return step.duration_s - min(at_once_s, wire_s, max(0.0, step.duration_s - wire_s))


def _predicted(workload: Workload, cluster: Cluster) -> float:
    return simulate_step(workload, on_cores(cluster, _CORES), Options()).duration_s


def _step_s(workload: Workload, cluster: Cluster) -> float:
    """After a pause for computing a limit lets some bytes pass at once."""
    rate = cluster.network.bandwidth
    at_once_s = min(BURST_BYTES / rate, workload.compute_s) if cluster.hosts > 1 else 0.0
    return max(workload.alone_s, _predicted(workload, cluster) - at_once_s)


def _print_summary(cases: list[_Case]) -> None:
    for shared in (False, True):
        for kind, labels in _KINDS.items():
            found = [c for c in cases if c.shares_cores == shared and c.label in labels]
            if found:
                errors = [abs(case.error) for case in found]
                title = f"{kind}, cores {'shared' if shared else 'not shared'}: {len(found)}"
                again = statistics.median(case.spread for case in found)
                print(f"{title}, median error {statistics.median(errors):.0%}", end="")
                print(f", worst {max(errors):.0%}", end="")
                print(f"; measured again they differ by {again:.0%}" if again else "")
    print(f"load of the machine: {getloadavg()[0]:.1f} on {_CORES} cores")


if __name__ == "__main__":
    sys.exit(main())
