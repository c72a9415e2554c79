"""``horovod.simulate`` against allreduces on this machine, whose hosts are namespaces.

Calibrated on 2 hosts of 1 and of 2 ranks without a limit on the links; everything else is predicted
first and measured then. All ranks share the cores of this machine, which the model knows
(``on_cores``). A measured time is the median over rounds of the slowest rank's. Needs root.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from os import cpu_count, getloadavg

from collectives import Work, prepare
from command_line import make_parser
from on_hosts import Network as Hosts
from on_hosts import RanksOnHosts, SshServers, open_hosts
from report import OURS
from worker_groups import GroupSpec, WorkerGroup, measure_and_release, open_groups

from horovod.simulate import Cluster, Costs, Gradient, Network, Options, Workload, on_cores
from horovod.simulate.step import simulate_step

_CORES = cpu_count() or 1
_SPEC = GroupSpec(OURS, "horovodrun", "horovod")
_SMALL, _LARGE, _MANY = Work.parse("4B"), Work.parse("64MB"), Work.parse("1000x4KB")
_WORKS = (_SMALL, Work.parse("64KB"), Work.parse("1MB"), Work.parse("16MB"), _LARGE, _MANY)
_CALIBRATED = ((2, 1), (2, 2))
_TOPOLOGIES = (*_CALIBRATED, (1, 2), (1, 4), (4, 1), (4, 2), (8, 1))
_LIMITS: tuple[int | None, ...] = (None, 1000, 100)  # Mbit/s
_MOST_S = 1.0  # of one call; what is predicted to take longer is not measured
_PAYLOAD = 0.94  # of a limit, without headers
_UNLIMITED = 1e12

_Times = dict[tuple[int, int, str], float]


@dataclass(frozen=True)
class _Case:
    """One allreduce, or many at once."""

    hosts: int
    ranks: int
    work: Work
    mbit_per_s: int | None
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Of the prediction, as a part of what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def line(self) -> str:
        """For people."""
        limit = f"{self.mbit_per_s} Mbit/s" if self.mbit_per_s else "unlimited"
        times = f"{1e3 * self.measured_s:10.3f} ms {1e3 * self.predicted_s:10.3f} ms"
        place = f"{self.hosts} x {self.ranks}  {self.work.label:10} {limit:12}"
        return f"{place}{times} {self.error:+7.0%}"

    @property
    def shares_cores(self) -> bool:
        """Whether there are more ranks than cores."""
        return self.hosts * self.ranks > _CORES


def main() -> int:
    args = make_parser(__doc__, "one round of each, and fewer hosts").parse_args()
    topologies = ((2, 1), (1, 2), (4, 1)) if args.quick else _TOPOLOGIES
    with open_hosts(max(hosts for hosts, _ in topologies)) as (network, servers):
        known: _Times = {}
        for hosts, ranks in _CALIBRATED:
            for work, seconds in _measured(network, servers, hosts, ranks, None, args.quick):
                known[hosts, ranks, work.label] = seconds
        costs, link = _calibrated(known)
        print(f"calibrated: {costs}\n{link}\nload {getloadavg()[0]:.1f}", flush=True)
        cases = list(_cases(network, servers, topologies, costs, link, args.quick))
    _print_summary(cases)
    return 0


def _cases(
    network: Hosts,
    servers: SshServers,
    topologies: tuple[tuple[int, int], ...],
    costs: Costs,
    link: Network,
    is_quick: bool,
) -> Iterator[_Case]:
    for hosts, ranks in topologies:
        for limit in _LIMITS if hosts > 1 else _LIMITS[:1]:
            if (hosts, ranks) in _CALIBRATED and limit is None:
                continue

            def predicted(work: Work, limit: int | None = limit) -> float:
                limited = link if limit is None else _limited(link, limit)
                return _predicted(work, Cluster(hosts, ranks, limited, costs))  # noqa: B023

            for work, seconds in _measured(
                network, servers, hosts, ranks, limit, is_quick, predicted
            ):
                case = _Case(hosts, ranks, work, limit, predicted(work), seconds)
                print(case.line, flush=True)
                yield case


def _limited(link: Network, mbit_per_s: int) -> Network:
    return replace(link, bandwidth=_PAYLOAD * mbit_per_s * 1e6 / 8)


def _measured(
    network: Hosts,
    servers: SshServers,
    hosts: int,
    ranks: int,
    limit: int | None,
    is_quick: bool,
    predicted: Callable[[Work], float] = lambda work: 0.0,
) -> Iterator[tuple[Work, float]]:
    """Each work that does not take too long, and its seconds."""
    part = _Part(network, hosts)
    with (
        closing(RanksOnHosts(part, servers, ranks)) as start,  # type: ignore[arg-type]
        open_groups([_SPEC], hosts * ranks, "collective_loop:CollectiveLoop", start) as groups,
    ):
        for host in part.hosts if limit else ():
            host.limit_rate(limit)
        for work in _WORKS:
            if predicted(work) <= _MOST_S:
                yield work, _time_of(work, groups, hosts * ranks, is_quick)
        for host in part.hosts if limit else ():
            host.limit_rate(None)


class _Part:
    """The first hosts of a network."""

    def __init__(self, network: Hosts, count: int) -> None:
        self.hosts = network.hosts[:count]


def _time_of(work: Work, groups: list[WorkerGroup], size: int, is_quick: bool) -> float:
    for group in groups:
        prepare(group, work, size)
    return statistics.median(measure_and_release(groups, is_quick, 0.1, 0.05)[OURS])


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
        is_less = _predicted(_LARGE, cluster) < known[2, 2, _LARGE.label]
        low_s, high_s = (byte_s, high_s) if is_less else (low_s, byte_s)
    return replace(costs, byte_s=low_s), link


def _predicted(work: Work, cluster: Cluster) -> float:
    gradients = [
        Gradient(str(index), work.element_count * 4, 0.0) for index in range(work.tensor_count)
    ]
    workload = Workload(work.label, gradients, 1e-9)
    return simulate_step(workload, on_cores(cluster, _CORES), Options()).duration_s


def _print_summary(cases: list[_Case]) -> None:
    for title, is_shared in (("cores not shared", False), ("cores shared", True)):
        errors = [abs(case.error) for case in cases if case.shares_cores == is_shared]
        if errors:
            median, worst = statistics.median(errors), max(errors)
            print(f"{title}: {len(errors)} cases, median error {median:.0%}, worst {worst:.0%}")
    print(f"load of the machine: {getloadavg()[0]:.1f} on {_CORES} cores")


if __name__ == "__main__":
    sys.exit(main())
