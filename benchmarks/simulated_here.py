"""``horovod.simulate`` against this machine, whose hosts are namespaces.

Calibrated on 2 hosts of 1 and of 2 ranks without a limit on the links; everything else is predicted
first and measured then: allreduces, and training steps of three models of ``training.py``, whose
computing is that of as many ranks without communication. All ranks share the cores of this machine,
which the model knows (``on_cores``). A measured time is the median over rounds of the slowest
rank's. Needs root.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
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
from horovod.simulate.step import simulate_step

_CORES = cpu_count() or 1
_SPEC = GroupSpec(OURS, "horovodrun", "horovod")
_ALONE = GroupSpec("alone", "processes", "alone")
_SMALL, _LARGE, _MANY = Work.parse("4B"), Work.parse("64MB"), Work.parse("1000x4KB")
_WORKS = (_SMALL, Work.parse("64KB"), Work.parse("1MB"), Work.parse("16MB"), _LARGE, _MANY)
_TRAINED = list(MODELS)[:3]
_CALIBRATED = ((2, 1), (2, 2))
_TOPOLOGIES = (*_CALIBRATED, (1, 2), (1, 4), (4, 1), (4, 2), (8, 1))
_LIMITS: tuple[int | None, ...] = (None, 1000, 100)  # Mbit/s
_MOST_S = 1.5  # of one call; what is predicted to take longer is not measured
_PAYLOAD = 0.94  # of a limit, without headers
_UNLIMITED = 1e12

_Times = dict[tuple[int, int, str], float]


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
    measured_s: float

    @property
    def error(self) -> float:
        """Of the prediction, as a part of what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def line(self) -> str:
        """For people."""
        place = self.place
        limit = f"{place.mbit_per_s} Mbit/s" if place.mbit_per_s else "unlimited"
        times = f"{1e3 * self.measured_s:10.3f} ms {1e3 * self.predicted_s:10.3f} ms"
        what = f"{place.hosts} x {place.ranks}  {self.label:29} {limit:12}"
        return f"{what}{times} {self.error:+7.0%}"

    @property
    def shares_cores(self) -> bool:
        """Whether there are more ranks than cores."""
        return self.place.hosts * self.place.ranks > _CORES


def main() -> int:
    args = make_parser(__doc__, "one round of each, and fewer hosts").parse_args()
    topologies = ((2, 1), (1, 2), (4, 1)) if args.quick else _TOPOLOGIES
    with open_hosts(max(hosts for hosts, _ in topologies)) as (network, servers):
        known: _Times = {}
        for hosts, ranks in _CALIBRATED:
            place = _Place(hosts, ranks, None)
            for work, seconds in _measured(network, servers, place, args.quick):
                known[hosts, ranks, work.label] = seconds
        costs, link = _calibrated(known)
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
            if (hosts, ranks) not in _CALIBRATED or limit is not None:

                def predicted(work: Work, cluster: Cluster = cluster) -> float:
                    return _predicted(_allreduces(work), cluster)

                for work, seconds in _measured(network, servers, place, is_quick, predicted):
                    yield _Case(place, work.label, predicted(work), seconds)
            expected = {each.title: _step_s(each, cluster) for each in steps[hosts * ranks]}
            for model, seconds in _trained(network, servers, place, is_quick, expected):
                yield _Case(place, model, expected[model], seconds)


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
    is_quick: bool,
    predicted: Callable[[Work], float] = lambda work: 0.0,
) -> Iterator[tuple[Work, float]]:
    """Each work that does not take too long, and its seconds."""
    with _ranks(network, servers, place, "collective_loop:CollectiveLoop") as groups:
        for work in _WORKS:
            if predicted(work) <= _MOST_S:
                for group in groups:
                    prepare(group, work, place.hosts * place.ranks)
                yield work, _median(groups, is_quick, 0.1)


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


def _calibrated(known: _Times) -> tuple[Costs, Network]:
    """The costs with which the two calibrated topologies take the times that they took.

    One rank on each host sums nothing in memory, so its times are those of the links; the
    difference to two ranks is what memory costs.
    """
    small_s, large_s, many_s = (known[2, 1, work.label] for work in (_SMALL, _LARGE, _MANY))
    sizes = [work.element_count * 4 * work.tensor_count for work in (_SMALL, _LARGE, _MANY)]
    link_byte_s = (large_s - small_s) / sizes[1]
    tensor_s = max(0.0, (many_s - small_s - sizes[2] * link_byte_s) / _MANY.tensor_count)
    # Up and down the tree, and one trip of the data.
    link = Network("namespaces", _UNLIMITED, small_s / 3, 1e-7, "calibrated")
    costs = Costs(tensor_s, 0.0, 0.0, link_byte_s, overlap=False, source="calibrated")
    low_s, high_s = 0.0, 10 * link_byte_s
    for _ in range(60):
        byte_s = (low_s + high_s) / 2
        cluster = Cluster(2, 2, link, replace(costs, byte_s=byte_s))
        is_less = _predicted(_allreduces(_LARGE), cluster) < known[2, 2, _LARGE.label]
        low_s, high_s = (byte_s, high_s) if is_less else (low_s, byte_s)
    return replace(costs, byte_s=low_s), link


def _allreduces(work: Work) -> Workload:
    gradients = [
        Gradient(str(index), work.element_count * 4, 0.0) for index in range(work.tensor_count)
    ]
    return Workload(work.label, gradients, 1e-9)


def _predicted(workload: Workload, cluster: Cluster) -> float:
    return simulate_step(workload, on_cores(cluster, _CORES), Options()).duration_s


def _step_s(workload: Workload, cluster: Cluster) -> float:
    """After a pause for computing a limit lets some bytes pass at once."""
    rate = cluster.network.bandwidth
    at_once_s = min(BURST_BYTES / rate, workload.compute_s) if cluster.hosts > 1 else 0.0
    return max(workload.alone_s, _predicted(workload, cluster) - at_once_s)


def _print_summary(cases: list[_Case]) -> None:
    for shared in (False, True):
        for trained in (False, True):
            errors = [
                abs(case.error)
                for case in cases
                if case.shares_cores == shared and (case.label in MODELS) == trained
            ]
            if errors:
                what = "training steps" if trained else "allreduces"
                title = f"{what}, cores {'shared' if shared else 'not shared'}: {len(errors)}"
                print(f"{title}, median error {statistics.median(errors):.0%}", end="")
                print(f", worst {max(errors):.0%}")
    print(f"load of the machine: {getloadavg()[0]:.1f} on {_CORES} cores")


if __name__ == "__main__":
    sys.exit(main())
