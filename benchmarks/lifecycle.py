"""Many calls of init and shutdown in one process: their times, and resources left behind.

Two ranks, each in one process that joins and leaves a hundred worlds, ours and torch's Gloo in
turns. In every world the ranks sum 4 bytes, so that all connections are made. A time is the median
over worlds of the slower rank's. Left behind: open descriptors, threads and resident memory after
the last world minus those after a few worlds of warm-up, on the worse rank.
"""

from __future__ import annotations

import argparse
import sys

from command_line import make_parser
from report import OURS, Bar, Table, format_bytes, format_count, format_time, print_report
from worker_groups import GroupSpec, WorkerGroup, open_groups

_RANK_COUNT = 2
_SPECS = (
    GroupSpec(OURS, "horovodrun", "none"),
    GroupSpec("gloo", "processes", "none"),
)
_INIT, _SHUTDOWN = "init", "shutdown"
_TIME_BARS = (Bar(_INIT, None, 0.05), Bar(_SHUTDOWN, None, 0.05))
_DESCRIPTORS, _THREADS, _RESIDENT = "descriptors", "threads", "resident memory"
_COUNT_BARS = (Bar(_DESCRIPTORS, None, 0), Bar(_THREADS, None, 0))
_MEMORY_BARS = (Bar(_RESIDENT, None, 1e6),)
_TURNS = 5


def main() -> int:
    args = _parse_arguments()
    names = [spec.name for spec in _SPECS]
    times = Table("life cycle, 2 ranks: time per world", names, format_time, _TIME_BARS)
    times.rows = {row: {name: [] for name in names} for row in (_INIT, _SHUTDOWN)}
    title = f"left behind by {args.worlds} worlds"
    counts = Table(title, names, format_count, _COUNT_BARS)
    memory = Table(title, names, format_bytes, _MEMORY_BARS)
    with open_groups(_SPECS, _RANK_COUNT, "lifecycle_probe:LifecycleProbe") as groups:
        for group in groups:
            group.call("prepare", library="horovod" if group.name == OURS else "gloo")
        for _ in range(_TURNS):
            for group in groups:
                _add_times(times, group, args.worlds // _TURNS)
        for group in groups:
            added = group.call("added")
            for table, row in ((counts, _DESCRIPTORS), (counts, _THREADS), (memory, _RESIDENT)):
                worst = max(rank[row] for rank in added)
                table.rows.setdefault(row, {})[group.name] = [worst]
    return print_report([times, counts, memory], args.json)


def _add_times(times: Table, group: WorkerGroup, world_count: int) -> None:
    """One figure per world: that of the slower rank."""
    by_rank = group.call("join_and_leave", world_count=world_count)
    for row, index in ((_INIT, 0), (_SHUTDOWN, 1)):
        worlds = zip(*by_rank, strict=True)
        times.rows[row][group.name] += [max(rank[index] for rank in world) for world in worlds]


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--worlds", type=int, default=100, help="a multiple of 5")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
