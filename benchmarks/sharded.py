"""The shared optimizer step: ``sharded=True``, ZeroRedundancyOptimizer on DDP, and each alone.

Two ranks with one compute thread each, random data. The same step without communication runs on the
same number of busy cores, in the same run: efficiency is its time divided by the step's time. It
can be more than 100 %, since ranks that share a step do half of it. All contestants' ranks are
alive at once and are measured in turns; a figure is the median over rounds of the slowest rank.
"""

from __future__ import annotations

import argparse
import sys

from command_line import add_contestants, add_labels, make_parser
from report import OURS, Bar, Table, efficiency_table, format_bytes, format_time, print_report
from worker_groups import GroupSpec, check_equal, measure_and_release, open_groups

_ALONE = "no communication"
_SHARDED = "sharded"
_ZERO = "ZeRO on gloo"
_SPECS = (
    GroupSpec(_SHARDED, "horovodrun", "sharded"),
    GroupSpec(OURS, "horovodrun", "horovod"),
    GroupSpec(_ZERO, "processes", "zero on gloo"),
    GroupSpec(_ALONE, "processes", "alone"),
)
_RANK_COUNT = 2
# What is measured: model, optimizer, bar and aim of the efficiency.
_WORK = {
    "602 tensors with SGD": ("602 tensors, 0.6 M parameters", "SGD", None, None),
    "602 tensors with Adam": ("602 tensors, 0.6 M parameters", "Adam", None, None),
    "25 M with SGD": ("8 tensors, 25 M parameters", "SGD", 1.00, 1.02),
    "25 M with Adam": ("8 tensors, 25 M parameters", "Adam", None, None),
    "101 M with SGD": ("6 tensors, 101 M parameters", "SGD", 1.03, 1.07),
    "101 M with Adam": ("6 tensors, 101 M parameters", "Adam", 1.25, 1.35),
}
_AT_MOST_OF_ZERO = 0.6


def main() -> int:
    args = _parse_arguments()
    specs = [spec for spec in _SPECS if spec.name in args.contestants]
    names = [spec.name for spec in specs]
    bars = [Bar(row, _ZERO, _AT_MOST_OF_ZERO, contestant=_SHARDED) for row in _WORK]
    steps = Table("training step, 2 ranks: time", names, format_time, bars)
    memory = Table("optimizer state of a rank", names, format_bytes)
    with open_groups(specs, _RANK_COUNT, "sharded_loop:ShardedLoop") as groups:
        for label in args.work:
            print(f"measuring {label}", file=sys.stderr, flush=True)
            model, optimizer, *_ = _WORK[label]
            for group in groups:
                sums = group.call("prepare", model=model, optimizer=optimizer)
                if group.name != _ALONE:
                    check_equal(group, sums)
            memory.rows[label] = {group.name: [max(group.call("state_bytes"))] for group in groups}
            steps.rows[label] = measure_and_release(groups, args.quick, 1.0, 0.4)
    tables = [steps, efficiency_table(steps, _ALONE, _efficiency_bars()), memory]
    return print_report(tables, args.json)


def _efficiency_bars() -> list[Bar]:
    return [
        Bar(row, None, factor, is_aim, _SHARDED)
        for row, (_, _, *factors) in _WORK.items()
        for factor, is_aim in zip(factors, (False, True), strict=True)
        if factor is not None
    ]


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer and shorter rounds")
    add_labels(parser, "--work", list(_WORK))
    add_contestants(parser, [spec.name for spec in _SPECS])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
