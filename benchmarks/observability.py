"""The cost of the flight recorder, a timeline, metrics and a report.

Two ranks train the four models of ``training.py``, and sum 1000 tensors of 4 KB in place, a step
that only starts operations and is the worst case. The same two processes go through worlds with
different settings, so that tensors keep their addresses. A figure is the median over rounds of the
slower rank's time per step, divided by that of the same round without the recorder.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from command_line import add_labels, make_parser
from observed_loop import FORMS
from rendezvous_files import free_address
from report import OURS, Bar, Table, format_time, print_report
from training_loop import MODELS
from worker_groups import Commands, GroupSpec, Way, WorkerGroup, measure_in_turns, open_groups

_RANK_COUNT = 2
_OFF = "recorder off"
_ON = OURS
_ALL = "timeline, metrics, report"
# Limits of a step, relative to one without: what is always on, and everything.
_LIMITS = {_ON: 1.005, _ALL: 1.02}
_IDLE_ROUNDS = 2  # until the processes have settled
_REPORT = "_HOROVOD_REPORT"  # what --report sets


def main() -> int:
    args = _parse_arguments()
    steps = _table("training step, 2 ranks")
    operations = _table("1000 x 4 KB")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        worlds = _worlds(Path(folder))

        def start(_launcher: str, ranks: int, words: Sequence[str], _store: str) -> Commands:
            program = str(Path(sys.executable).with_name("horovodrun"))
            options = ["-np", str(ranks), "--report", f"{folder}/report.html"]
            return [([program, *options, sys.executable, *words], {})]

        specs = [GroupSpec(OURS, "horovodrun", "horovod")]
        with open_groups(specs, _RANK_COUNT, "observed_loop:ObservedLoop", start) as (group,):
            for form in FORMS:
                group.call("choose", form=form)
                _add_row(operations, form, _in_worlds(group, worlds), args.rounds)
            for model in args.model:
                group.call("prepare", model=model)
                _add_row(steps, model, _in_worlds(group, worlds), args.rounds)
                group.call("release")
    steps.bars = [
        Bar(row, None, limit, contestant=name)
        for row in steps.rows
        for name, limit in _LIMITS.items()
    ]
    return print_report([operations, steps], args.json)


def _worlds(folder: Path) -> dict[str, dict[str, str | None]]:
    """The variables in which the worlds differ."""
    nothing: dict[str, str | None] = {
        "HOROVOD_RECORDER_EVENTS": None,
        "HOROVOD_TIMELINE": None,
        "HOROVOD_TIMELINE_MARK_CYCLES": None,
        "HOROVOD_METRICS_PORT": None,
        _REPORT: None,
    }
    everything = {
        "HOROVOD_TIMELINE": str(folder / "timeline.json"),
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_METRICS_PORT": free_address().rpartition(":")[2],
        _REPORT: "1",
    }
    return {
        _OFF: {**nothing, "HOROVOD_RECORDER_EVENTS": "0"},
        _ON: nothing,
        _ALL: {**nothing, **everything},
    }


def _table(what: str) -> Table:
    title = f"{what}: time over that with the recorder switched off"
    return Table(title, tuple(_LIMITS), "{:.3f}".format)


def _in_worlds(group: WorkerGroup, worlds: Mapping[str, Mapping[str, str | None]]) -> list[Way]:
    return [Way(name, group, environment=environment) for name, environment in worlds.items()]


def _add_row(table: Table, row: str, worlds: Sequence[Way], rounds: int) -> None:
    print(f"measuring {row}", file=sys.stderr, flush=True)
    times = measure_in_turns(worlds, rounds=rounds + _IDLE_ROUNDS, loop_s=0.3)
    row = f"{row} ({format_time(statistics.median(times[_OFF]))})"
    table.rows[row] = {name: _ratios(times, name) for name in table.contestants}
    for name in table.contestants:
        spread = statistics.quantiles(table.rows[row][name], n=4)
        print(f"{row}, {name}: quartiles {spread[0]:.3f} to {spread[2]:.3f}", file=sys.stderr)


def _ratios(times: dict[str, list[float]], name: str) -> list[float]:
    """Each round's time divided by that without a recorder in the same round."""
    pairs = zip(times[name], times[_OFF], strict=True)
    return [one / off for one, off in list(pairs)[_IDLE_ROUNDS:]]


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_labels(parser, "--model", list(MODELS))
    parser.add_argument("--rounds", type=int, default=41)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
