"""Many tensors against one tensor of the same bytes: the cost per tensor.

Two ranks, in-place sums of float32. The same bytes are sent as one tensor and as many of 4 KB or
64 KB: by one ``grouped_allreduce_``, by one ``allreduce_async_`` each, all started before the first
wait, and in one batch, as ``DistributedOptimizer`` submits its gradients. The forms are measured in
turns, round after round; a figure is the median over rounds of the slower rank's time, and
"ours/it" is the cost of cutting.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from command_line import make_parser, numbers
from grouped_loop import FORMS, WHOLE
from report import OURS, Bar, Table, format_time, print_report
from worker_groups import GroupSpec, WorkerGroup, measure_in_turns, open_groups

_RANK_COUNT = 2
_SIZES_MB = (1, 16, 64)
_PARTS_KB = (4, 64)
_FACTOR = 1.2  # required above 1 MB


class _Form:
    """One way to reduce the bytes, measured like a group of workers."""

    def __init__(self, name: str, group: WorkerGroup) -> None:
        self.name = name
        self._group = group

    def call(self, method: str, **arguments: Any) -> list[Any]:
        return self._group.call(method, form=self.name, **arguments)


def main() -> int:
    args = _parse_arguments()
    title = "many tensors, 2 ranks: time together, and divided by that of one tensor of all bytes"
    table = Table(title, [OURS, WHOLE], format_time)
    spec = GroupSpec(OURS, "horovodrun", "horovod")
    with open_groups([spec], _RANK_COUNT, "grouped_loop:GroupedLoop") as (group,):
        for size_mb in args.sizes_mb:
            for part_kb in _PARTS_KB:
                _measure(table, group, size_mb, part_kb, args.quick)
    table.bars = [Bar(row, WHOLE, _FACTOR, is_aim=row.startswith("1MB:")) for row in table.rows]
    return print_report([table], args.json)


def _measure(table: Table, group: WorkerGroup, size_mb: int, part_kb: int, is_quick: bool) -> None:
    """Add a row per form: ``size_mb`` of tensors of ``part_kb`` each."""
    tensor_count = size_mb * 1024 // part_kb
    label = f"{size_mb}MB: {tensor_count} x {part_kb}KB"
    print(f"measuring {label}", file=sys.stderr, flush=True)
    group.call("prepare", element_count=part_kb * 256, tensor_count=tensor_count)
    forms = [_Form(name, group) for name in (WHOLE, *FORMS)]
    rounds, loop_s = (3, 0.05) if is_quick else (9, 0.15)
    times = measure_in_turns(forms, rounds=rounds, loop_s=loop_s)
    for name in FORMS:
        table.rows[f"{label}, {name}"] = {OURS: times[name], WHOLE: times[WHOLE]}
    group.call("release")


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer and shorter rounds")
    parser.add_argument("--sizes-mb", type=numbers, default=_SIZES_MB)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
