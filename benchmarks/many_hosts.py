"""Allreduce between two hosts, against torch's Gloo, Open MPI by mpi4py, and the wire itself.

The hosts are namespaces of this machine, joined by virtual cables and a switch, with one or two
ranks each; every host can send as fast as the cores allow, or 1 Gbit/s. Congestion control is reno
on all of them. "wire" is one TCP connection between each rank and the same local rank of the other
host, which carries, both ways at once and without a sum, the bytes that a hierarchical allreduce
must exchange: no allreduce can be much faster. Upstream Horovod is not measured.

All contestants' ranks are alive at once, with one compute thread each, and are measured in turns,
round after round. A figure is the median over rounds of the slowest rank's time per call; in the
second table it is what the busiest host's interface sent per call, headers included. Needs root.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from collectives import Work, prepare
from command_line import add_contestants, make_parser
from on_hosts import Network, RanksOnHosts, open_hosts
from report import OURS, Bar, Table, format_bytes, format_time, print_report
from worker_groups import GroupSpec, WorkerGroup, measure_and_release, open_groups

_SPECS = (
    GroupSpec(OURS, "horovodrun", "horovod"),
    GroupSpec("gloo", "processes", "gloo"),
    GroupSpec("openmpi", "openmpi", "mpi"),
    GroupSpec("wire", "processes", "wire"),
)
_HOST_COUNT = 2
_BOUND = "bound"
_COUNTED = Work.parse("64MB")


@dataclass(frozen=True)
class _Row:
    """One figure of the table; ``mbit_per_s`` limits what each host sends, None: no limit."""

    ranks_per_host: int
    work: Work
    mbit_per_s: int | None

    @property
    def label(self) -> str:
        link = f"{self.mbit_per_s / 1000:g} Gbit/s" if self.mbit_per_s else "unlimited"
        return f"{_HOST_COUNT} x {self.ranks_per_host}, {self.work.label}, {link}"


_ROWS = (
    _Row(1, Work.parse("64MB"), 1000),
    _Row(2, Work.parse("64MB"), 1000),
    _Row(1, Work.parse("1000x4KB"), 1000),
    _Row(1, Work.parse("64MB"), None),
    _Row(2, Work.parse("64MB"), None),
    _Row(1, Work.parse("1000x4KB"), None),
    _Row(1, Work.parse("4B"), None),
)
_BARS = (
    Bar("2 x 1, 64MB, 1 Gbit/s", "wire", 1.03),
    Bar("2 x 2, 64MB, 1 Gbit/s", "gloo", 0.70),
    Bar("2 x 1, 1000x4KB, 1 Gbit/s", "gloo", 0.05),
    Bar("2 x 1, 1000x4KB, 1 Gbit/s", "openmpi", 1.0),
    Bar("2 x 1, 64MB, unlimited", "gloo", 1.0),
    Bar("2 x 2, 64MB, unlimited", "gloo", 0.5),
    Bar("2 x 1, 1000x4KB, unlimited", "openmpi", 0.4),
    Bar("2 x 1, 4B, unlimited", "gloo", 0.3),
)


def main() -> int:
    args = _parse_arguments()
    specs = [spec for spec in _SPECS if spec.name in args.contestants]
    names = [spec.name for spec in specs]
    title = "allreduce between hosts (hosts x ranks): time per call, and ours divided by the peer's"
    times = Table(title, names, format_time, _BARS, rows={row.label: {} for row in _ROWS})
    title = "bytes that a host sends per allreduce, against (hosts - 1) / hosts x 2 x size"
    label = f"{_HOST_COUNT} x 2, {_COUNTED.label}"
    traffic = Table(title, [*names, _BOUND], format_bytes, [Bar(label, _BOUND, 1.05)])
    with open_hosts(_HOST_COUNT) as (network, servers):
        for ranks_per_host in (1, 2):
            rank_count = ranks_per_host * _HOST_COUNT
            with (
                closing(RanksOnHosts(network, servers, ranks_per_host)) as start,
                open_groups(specs, rank_count, "collective_loop:CollectiveLoop", start) as groups,
            ):
                for row in _ROWS:
                    if row.ranks_per_host == ranks_per_host:
                        times.rows[row.label] = _measured(row, network, groups, args.quick)
                if ranks_per_host == 2:
                    traffic.rows[label] = _counted(network, groups)
    return print_report([times, traffic], args.json)


def _measured(
    row: _Row, network: Network, groups: Sequence[WorkerGroup], is_quick: bool
) -> dict[str, list[float]]:
    print(f"measuring {row.label}", file=sys.stderr, flush=True)
    if row.mbit_per_s:
        for host in network.hosts:
            host.limit_rate(row.mbit_per_s)
    _prepare(row.work, groups, row.ranks_per_host * _HOST_COUNT)
    figures = measure_and_release(groups, is_quick, 0.3, 0.05)
    if row.mbit_per_s:
        for host in network.hosts:
            host.limit_rate(None)
    return figures


def _counted(network: Network, groups: Sequence[WorkerGroup]) -> dict[str, list[float]]:
    """Bytes that the busiest host sends per call of each group, and the lower bound."""
    calls = 4
    size_bytes = _COUNTED.element_count * 4
    counts = {_BOUND: [(_HOST_COUNT - 1) / _HOST_COUNT * 2 * size_bytes]}
    _prepare(_COUNTED, groups, 2 * _HOST_COUNT)
    for group in groups:
        before = [host.traffic().sent_bytes for host in network.hosts]
        group.call("measure", iterations=calls)
        after = [host.traffic().sent_bytes for host in network.hosts]
        counts[group.name] = [max(b - a for a, b in zip(before, after, strict=True)) / calls]
    for group in groups:
        group.call("release")
    return counts


def _prepare(work: Work, groups: Sequence[WorkerGroup], size: int) -> None:
    for group in groups:
        prepare(group, work, 1 if group.name == "wire" else size)


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer and shorter rounds")
    add_contestants(parser, [spec.name for spec in _SPECS])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
