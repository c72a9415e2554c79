"""Training steps of four models: Horovod, DistributedDataParallel, and no communication.

Two ranks with one compute thread each, SGD with momentum, random data. The same step without
communication runs on the same number of busy cores, in the same run: efficiency is its time divided
by the step's time. Ours also runs with ``--keep-memory``. All contestants' ranks are alive at once
and are measured in turns, round after round; a figure is the median over rounds of the slowest
rank's time per step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from command_line import add_contestants, add_labels, make_parser
from report import OURS, Bar, Table, efficiency_table, format_time, print_report
from training_loop import MODELS
from worker_groups import GroupSpec, WorkerGroup, check_equal, measure_and_release, open_groups

_ALONE = "no communication"
_SPECS = (
    GroupSpec(OURS, "horovodrun", "horovod"),
    GroupSpec("with --keep-memory", "horovodrun", "horovod keeping memory"),
    GroupSpec("ddp on gloo", "processes", "gloo"),
    GroupSpec(_ALONE, "processes", "alone"),
)
_FLOORS = (
    GroupSpec("waiting alone", "horovodrun", "waiting floor"),
    GroupSpec("arena, at least", "horovodrun", "arena floor"),
)
_WITHOUT_RESULT = {_ALONE, *(floor.name for floor in _FLOORS)}
_RANK_COUNT = 2
_EFFICIENCIES = ((0.93, 0.97), (0.88, 0.95), (0.80, 0.92), (0.75, 0.88))  # bar and aim by model


def main() -> int:
    args = _parse_arguments()
    specs = [spec for spec in _SPECS if spec.name in args.contestants]
    specs += _FLOORS if args.floors else ()
    names = [spec.name for spec in specs]
    steps = Table("training step, 2 ranks: time", names, format_time)
    with open_groups(specs, _RANK_COUNT, "training_loop:TrainingLoop") as groups:
        for model in args.model:
            steps.rows[model] = _measure(groups, model, args.quick)
    return print_report([steps, efficiency_table(steps, _ALONE, _bars())], args.json)


def _bars() -> list[Bar]:
    bars = []
    for row, (bar, aim) in zip(MODELS, _EFFICIENCIES, strict=True):
        bars.append(Bar(row, None, bar))
        bars.append(Bar(row, None, aim, is_aim=True))
        bars.append(Bar(row, "ddp on gloo", 1))
    return bars


def _measure(groups: Sequence[WorkerGroup], model: str, is_quick: bool) -> dict[str, list[float]]:
    print(f"measuring {model}", file=sys.stderr, flush=True)
    for group in groups:
        sums = group.call("prepare", model=model)
        if group.name not in _WITHOUT_RESULT:
            check_equal(group, sums)
    return measure_and_release(groups, is_quick, 1.0, 0.4)


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer and shorter rounds")
    add_labels(parser, "--model", list(MODELS))
    add_contestants(parser, [spec.name for spec in _SPECS])
    parser.add_argument("--floors", action="store_true", help="ranks that only wait, and an arena")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
