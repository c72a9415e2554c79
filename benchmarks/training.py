"""Training steps of four models: Horovod, DistributedDataParallel, and no communication at all.

Two ranks with one compute thread each, SGD with momentum, random data. The same step without
communication runs on as many busy cores, in the same run: efficiency is its time divided by the
step's time. All contestants' ranks are alive at once and are measured in turns, round after
round; a figure is the median over rounds of the slowest rank's time per step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from report import OURS, Bar, Table, format_percent, format_time, print_report
from training_loop import MODELS
from worker_groups import GroupSpec, WorkerGroup, measure_in_turns, open_groups

_ALONE = "no communication"
_SPECS = (
    GroupSpec(OURS, "horovodrun", "horovod"),
    GroupSpec("ddp on gloo", "processes", "gloo"),
    GroupSpec(_ALONE, "processes", "alone"),
)
_RANK_COUNT = 2
_EFFICIENCIES = ((0.93, 0.97), (0.88, 0.95), (0.80, 0.92), (0.75, 0.88))  # bar and aim by model


def main() -> int:
    args = _parse_arguments()
    specs = [spec for spec in _SPECS if spec.name in args.contestants]
    names = [spec.name for spec in specs]
    steps = Table("training step, 2 ranks: time", names, format_time)
    with open_groups(specs, _RANK_COUNT, "training_loop:TrainingLoop") as groups:
        for model in args.model:
            steps.rows[model] = _measure(groups, model, args.quick)
    efficiencies = _efficiencies(steps)
    return 0 if print_report([steps, efficiencies], args.json) else 1


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
        if group.name != _ALONE and len(set(sums)) != 1:
            raise RuntimeError(f"{group.name}: the ranks' weights differ after two steps: {sums}")
    times = measure_in_turns(groups, rounds=3 if is_quick else 9, loop_s=0.4 if is_quick else 1.0)
    for group in groups:
        group.call("release")
    return times


def _efficiencies(steps: Table) -> Table:
    names = [name for name in steps.contestants if name != _ALONE]
    title = "efficiency: step without communication / step"
    table = Table(title, names, format_percent, _bars(), is_more_better=True)
    for row in steps.rows:
        alone = steps.median(row, _ALONE)
        medians = {name: steps.median(row, name) for name in names}
        if alone is not None:
            table.rows[row] = {name: [alone / step] for name, step in medians.items() if step}
    return table


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    labels = list(MODELS)
    parser.add_argument(
        "--model",
        type=lambda text: [labels[int(n) - 1] for n in text.split(",")],
        default=labels,
        help="; ".join(f"{n}: {label}" for n, label in enumerate(labels, 1)),
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
