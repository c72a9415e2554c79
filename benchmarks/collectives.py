"""Allreduce against its peers: torch's Gloo, Open MPI and MPICH by mpi4py, and a plain memcpy.

Measured: in-place sum of float32 tensors, one blocking call (latency and bandwidth, 4 B to 256 MB)
and many small tensors started together, then waited for. All contestants' ranks are alive at once,
with one compute thread each, and are measured in turns, round after round. A figure is the median
over rounds of the slowest rank's time per call. "memcpy" is one copy of the same tensor made by
all ranks at once: no communication could be much faster.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from report import OURS, Bar, Table, format_time, print_report
from worker_groups import GroupSpec, WorkerGroup, measure_in_turns, open_groups

_SPECS = (
    GroupSpec(OURS, "horovodrun", "horovod"),
    GroupSpec("gloo", "processes", "gloo"),
    GroupSpec("openmpi", "openmpi", "mpi"),
    GroupSpec("mpich", "mpich", "mpi"),
    GroupSpec("memcpy", "processes", "alone"),
)
_WORKS = "4B,64B,1KB,4KB,16KB,64KB,256KB,1MB,4MB,16MB,64MB,256MB,1000x4KB"
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
    ),
    4: (Bar("16MB", "gloo", 1 / 3), Bar("16MB", "openmpi", 1, is_aim=True)),
}


@dataclass(frozen=True)
class Work:
    """``tensor_count`` tensors of ``element_count`` float32 each, reduced together."""

    label: str
    element_count: int
    tensor_count: int

    @classmethod
    def parse(cls, label: str) -> Work:
        """``64KB`` or ``1000x4KB``; the units are powers of 1024."""
        found = re.fullmatch(r"(?:(\d+)x)?(\d+)(B|KB|MB)", label)
        if not found:
            raise argparse.ArgumentTypeError(f"{label!r}: expected something like 64KB or 1000x4KB")
        size_bytes = int(found[2]) * {"B": 1, "KB": 1024, "MB": 1024**2}[found[3]]
        return cls(label, max(1, size_bytes // 4), int(found[1] or 1))


def main() -> int:
    args = _parse_arguments()
    specs = [spec for spec in _SPECS if spec.name in args.contestants]
    tables = []
    for rank_count in args.ranks:
        title = f"allreduce, {rank_count} ranks: time per call, and ours divided by the peer's"
        bars = _BARS.get(rank_count, ())
        table = Table(title, [spec.name for spec in specs], format_time, bars)
        with open_groups(specs, rank_count, "collective_loop:CollectiveLoop") as groups:
            for work in args.work:
                table.rows[work.label] = _measure(groups, work, rank_count, args.quick)
        tables.append(table)
    return 0 if print_report(tables, args.json) else 1


def _measure(
    groups: Sequence[WorkerGroup], work: Work, rank_count: int, is_quick: bool
) -> dict[str, list[float]]:
    print(f"measuring {work.label} on {rank_count} ranks", file=sys.stderr, flush=True)
    for group in groups:
        sums = group.call(
            "prepare", element_count=work.element_count, tensor_count=work.tensor_count
        )
        expected = 1 if group.name == "memcpy" else rank_count
        if any(value != expected for pair in sums for value in pair):
            raise RuntimeError(f"{group.name}: {work.label} summed to {sums}, not {expected}")
    times = measure_in_turns(groups, rounds=3 if is_quick else 9, loop_s=0.05 if is_quick else 0.15)
    for group in groups:
        group.call("release")
    return times


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    works = [Work.parse(label) for label in _WORKS.split(",")]
    parser.add_argument(
        "--work",
        type=lambda text: [Work.parse(label) for label in text.split(",")],
        default=works,
        help=f"default: {_WORKS}",
    )
    parser.add_argument(
        "--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4]
    )
    names = [spec.name for spec in _SPECS]
    parser.add_argument(
        "--contestants", type=lambda text: text.split(","), default=names, help=",".join(names)
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
