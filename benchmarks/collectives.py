"""Collectives against their peers: torch's Gloo, Open MPI and MPICH by mpi4py, a plain memcpy.

Measured: in-place sums of float32 tensors, one blocking call (latency and bandwidth, 4 B to 256 MB)
and many small tensors started together, then waited for; and one blocking call of each other
collective. A size is that of one rank's input, for all contestants: "allgather 16MB" gives every
rank ``size`` x 16 MB, "reducescatter 16MB" 16 MB / ``size``. Peers write into the same output in
all calls, which is fastest (``--new-outputs``: into a new one per call, as Horovod's interface
requires of ours); allreduce and broadcast work in place everywhere.

All contestants' ranks are alive at once, with one compute thread each, and are measured in turns,
round after round. A figure is the median over rounds of the slowest rank's time per call. "memcpy"
is one copy of the same tensor by all ranks at once: no communication can be much faster.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from command_line import add_contestants, make_parser, numbers
from report import OURS, Bar, Table, format_time, print_report
from worker_groups import GroupSpec, WorkerGroup, measure_and_release, open_groups

_SPECS = (
    GroupSpec(OURS, "horovodrun", "horovod"),
    GroupSpec("gloo", "processes", "gloo"),
    GroupSpec("openmpi", "openmpi", "mpi"),
    GroupSpec("mpich", "mpich", "mpi"),
    GroupSpec("memcpy", "processes", "alone"),
)
_SUM = "allreduce"
_EXCHANGES = ("allgather", "reducescatter", "alltoall", "broadcast")
_SUMS = "4B,64B,1KB,4KB,16KB,64KB,256KB,1MB,4MB,16MB,64MB,256MB,1000x4KB"
_WORKS = ",".join(
    [_SUMS, *(f"{name} {size}" for name in _EXCHANGES for size in ("4KB", "1MB", "16MB"))]
)
_BARS = {
    2: (
        Bar("4B", "gloo", 1 / 10),
        Bar("4B", None, 5e-6, is_aim=True),
        Bar("64KB", "gloo", 1 / 8),
        Bar("64KB", "openmpi", 1.5, is_aim=True),
        Bar("64MB", "gloo", 1 / 4),
        Bar("64MB", "openmpi", 1 / 2),
        Bar("64MB", "memcpy", 1.3, is_aim=True),
        Bar("1000x4KB", "gloo", 1 / 60),
        Bar("1000x4KB", "openmpi", 1 / 5),
        Bar("1000x4KB", None, 1.5e-3, is_aim=True),
        *(Bar(f"{name} 16MB", "gloo", 1 / 3) for name in _EXCHANGES),
        *(Bar(f"{name} 16MB", "openmpi", 1) for name in _EXCHANGES),
    ),
    4: (Bar("16MB", "gloo", 1 / 3), Bar("16MB", "openmpi", 1, is_aim=True)),
}


@dataclass(frozen=True)
class Work:
    """``tensor_count`` tensors of ``element_count`` float32 each, in one call of ``collective``."""

    label: str
    collective: str
    element_count: int
    tensor_count: int

    @classmethod
    def parse(cls, label: str) -> Work:
        """``64KB`` or ``1000x4KB`` (allreduce), or ``alltoall 64KB``; units are powers of 1024."""
        collectives = "|".join(_EXCHANGES)
        found = re.fullmatch(rf"(?:({collectives}) |(\d+)x)?(\d+)(B|KB|MB)", label)
        if not found:
            raise argparse.ArgumentTypeError(
                f"{label!r}: expected something like 64KB, 1000x4KB or 'alltoall 64KB'"
            )
        size_bytes = int(found[3]) * {"B": 1, "KB": 1024, "MB": 1024**2}[found[4]]
        return cls(label, found[1] or _SUM, max(1, size_bytes // 4), int(found[2] or 1))

    def expected(self, size: int) -> list[float]:
        """The first and the last element of every rank's result on ``size`` ranks."""
        if self.collective == _SUM:
            return [size, size]
        if self.collective == "reducescatter":
            return [size * (size + 1) / 2] * 2
        return [1, 1 if self.collective == "broadcast" else size]


def main() -> int:
    args = _parse_arguments()
    tables = []
    for rank_count in args.ranks:
        sums = [work for work in args.work if work.collective == _SUM]
        if sums:
            tables.append(_measured_table(args, _SUM, rank_count, sums))
        exchanges = [work for work in args.work if work.collective != _SUM]
        if exchanges:
            tables.append(_measured_table(args, "other collectives", rank_count, exchanges))
    return print_report(tables, args.json)


def _measured_table(
    args: argparse.Namespace, name: str, rank_count: int, works: Sequence[Work]
) -> Table:
    specs = [spec for spec in _SPECS if spec.name in args.contestants]
    if name != _SUM:
        specs = [spec for spec in specs if spec.contestant != "alone"]
    title = f"{name}, {rank_count} ranks: time per call, and ours divided by the peer's"
    bars = [bar for bar in _BARS.get(rank_count, ()) if bar.row in {work.label for work in works}]
    table = Table(title, [spec.name for spec in specs], format_time, bars)
    with open_groups(specs, rank_count, "collective_loop:CollectiveLoop") as groups:
        for work in works:
            print(f"measuring {work.label} on {rank_count} ranks", file=sys.stderr, flush=True)
            for group in groups:
                size = 1 if group.name == "memcpy" else rank_count
                prepare(group, work, size, is_output_new=args.new_outputs)
            table.rows[work.label] = measure_and_release(groups, args.quick, 0.15, 0.05)
    return table


def prepare(group: WorkerGroup, work: Work, size: int, *, is_output_new: bool = False) -> None:
    """Prepare ``work`` on the ranks; ``RuntimeError`` if a result is not that of ``size`` ranks."""
    if work.collective == _SUM:
        arguments = {"element_count": work.element_count, "tensor_count": work.tensor_count}
        results = group.call("prepare_sum", **arguments)
    else:
        results = group.call(
            "prepare_exchange",
            collective=work.collective,
            element_count=work.element_count,
            is_output_new=is_output_new,
        )
    expected = work.expected(size)
    if any(result != expected for result in results):
        raise RuntimeError(f"{group.name}: {work.label} gave {results}, not {expected}")


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer and shorter rounds")
    parser.add_argument(
        "--work",
        type=lambda text: [Work.parse(label) for label in text.split(",")],
        default=_WORKS,
        help="default: %(default)s",
    )
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    add_contestants(parser, [spec.name for spec in _SPECS])
    parser.add_argument(
        "--new-outputs", action="store_true", help="peers, too, make a new output per call"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
