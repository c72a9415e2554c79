"""What looking inside costs: the flight recorder, a timeline, metrics, a report.

Two ranks train the four models of ``training.py``, and sum 1000 tensors of 4 KB in place: a "step"
that does nothing but start operations, so that a model's is never as dear. The same jobs, with
different options, stay alive together and are measured in turns; a figure is the median over
rounds of the slower rank's time over that of the job whose recorder is switched off in the same
round.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report import OURS, Bar, Table, format_time, print_report
from training_loop import MODELS
from worker_groups import (
    Commands,
    GroupSpec,
    Measured,
    WorkerGroup,
    measure_in_turns,
    open_groups,
)

_RANK_COUNT = 2
_TENSORS = 1000
_OFF = "recorder off"
_ON = OURS
_ALL = "timeline, metrics, report"
_NAMES = (_OFF, _ON, _ALL)
_FORMS = {
    "asynchronous": "1000 x 4KB, one call each",
    "batch of DistributedOptimizer": "1000 x 4KB in one call",
}
# The most that a step may take, of its time without: what is always on, and everything.
_STEP_LIMITS = {_ON: 1.005, _ALL: 1.02}
_OPERATIONS_LIMIT = 1.01  # of the recorder, with steps of 1000 tensors and no computation
_IDLE_ROUNDS = 2  # in which processes come to be what they stay


def main() -> int:
    args = _parse_arguments()
    tables = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        start = _Starter(Path(folder))
        specs = [GroupSpec(name, name, "horovod") for name in _NAMES]
        if not args.model or args.operations:
            with open_groups(specs, _RANK_COUNT, "grouped_loop:GroupedLoop", start) as groups:
                tables.append(_measure_operations(groups, args.rounds))
        with open_groups(specs, _RANK_COUNT, "training_loop:TrainingLoop", start) as groups:
            tables.append(_measure_steps(groups, args.model or list(MODELS), args.rounds))
    return 0 if print_report(tables, args.json) else 1


class _Starter:
    """The commands of jobs that differ in what of them can be seen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = str(Path(sys.executable).with_name("horovodrun"))

    def __call__(self, name: str, ranks: int, words: Sequence[str], _store: str) -> Commands:
        options = self._options() if name == _ALL else []
        environment = {"HOROVOD_RECORDER_EVENTS": "0"} if name == _OFF else {}
        command = [self._program, "-np", str(ranks), *options, sys.executable, *words]
        return [(command, environment)]

    def _options(self) -> list[str]:
        timeline, report = self._folder / "timeline.json", self._folder / "report.html"
        port = str(_free_port())
        return [
            *("--timeline-filename", str(timeline), "--timeline-mark-cycles"),
            *("--metrics-port", port, "--report", str(report)),
        ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _measure_operations(groups: Sequence[WorkerGroup], rounds: int) -> Table:
    title = "1000 operations: time over that with the recorder switched off"
    table = Table(title, _NAMES[1:], "{:.3f}".format)
    for group in groups:
        group.call("prepare", element_count=1024, tensor_count=_TENSORS)
    for form, row in _FORMS.items():
        _add_row(table, row, [_InForm(group, form) for group in groups], rounds)
    table.bars = [Bar(row, None, _OPERATIONS_LIMIT) for row in table.rows]
    return table


def _measure_steps(groups: Sequence[WorkerGroup], models: Sequence[str], rounds: int) -> Table:
    title = "training step, 2 ranks: time over that with the recorder switched off"
    table = Table(title, _NAMES[1:], "{:.3f}".format)
    for model in models:
        print(f"measuring {model}", file=sys.stderr, flush=True)
        for group in groups:
            group.call("prepare", model=model)
        _add_row(table, model, groups, rounds)
        for group in groups:
            group.call("release")
    table.bars = [
        Bar(row, None, limit, contestant=name)
        for row in table.rows
        for name, limit in _STEP_LIMITS.items()
    ]
    return table


def _add_row(table: Table, row: str, groups: Sequence[Measured], rounds: int) -> None:
    times = measure_in_turns(groups, rounds=rounds + _IDLE_ROUNDS, loop_s=0.2)
    row = f"{row} ({format_time(statistics.median(times[_OFF]))})"
    table.rows[row] = {name: _ratios(times, name) for name in table.contestants}
    for name in table.contestants:
        spread = statistics.quantiles(table.rows[row][name], n=4)
        print(f"{row}, {name}: quartiles {spread[0]:.3f} to {spread[2]:.3f}", file=sys.stderr)


def _ratios(times: dict[str, list[float]], name: str) -> list[float]:
    """Each round's time over that without a recorder in the same round."""
    pairs = zip(times[name], times[_OFF], strict=True)
    return [one / off for one, off in list(pairs)[_IDLE_ROUNDS:]]


class _InForm:
    """A group of workers that always measures one form; ``Measured``, too."""

    def __init__(self, group: WorkerGroup, form: str) -> None:
        self.name = group.name
        self._group = group
        self._form = form

    def call(self, method: str, **arguments: object) -> list[float]:
        return self._group.call(method, form=self._form, **arguments)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    labels = list(MODELS)
    parser.add_argument(
        "--model",
        type=lambda text: [labels[int(n) - 1] for n in text.split(",")],
        help="these only; " + "; ".join(f"{n}: {label}" for n, label in enumerate(labels, 1)),
    )
    parser.add_argument("--operations", action="store_true", help="the 1000 operations, too")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
