"""What looking inside costs: the flight recorder, a timeline, metrics, a report.

Two ranks train the four models of ``training.py``, and sum 1000 tensors of 4 KB in place: a "step"
that does nothing but start operations, so that a model's is never as dear. The same two processes
go from one world to the next, which differ in what is switched on, so that a tensor lies where it
lay; a figure is the median over rounds of the slower rank's time per step over that of the same
round's world whose recorder is switched off.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from observed_loop import FORMS
from report import OURS, Bar, Table, format_time, print_report
from training_loop import MODELS
from worker_groups import Commands, GroupSpec, WorkerGroup, measure_in_turns, open_groups

_RANK_COUNT = 2
_OFF = "recorder off"
_ON = OURS
_ALL = "timeline, metrics, report"
# The most that a step may take, of its time without: what is always on, and everything.
_LIMITS = {_ON: 1.005, _ALL: 1.02}
_IDLE_ROUNDS = 2  # in which processes come to be what they stay
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
    return 0 if print_report([operations, steps], args.json) else 1


def _worlds(folder: Path) -> dict[str, dict[str, str | None]]:
    """What of a world's environment makes the difference."""
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
        "HOROVOD_METRICS_PORT": str(_free_port()),
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _InWorld:
    """The group in worlds of one kind, for ``measure_in_turns``."""

    def __init__(self, group: WorkerGroup, name: str, environment: Mapping[str, str | None]):
        self.name = name
        self._group = group
        self._environment = environment

    def call(self, method: str, **arguments: object) -> list[float]:
        self._group.call("use", environment=self._environment)
        return self._group.call(method, **arguments)


def _in_worlds(
    group: WorkerGroup, worlds: Mapping[str, Mapping[str, str | None]]
) -> list[_InWorld]:
    return [_InWorld(group, name, environment) for name, environment in worlds.items()]


def _add_row(table: Table, row: str, worlds: Sequence[_InWorld], rounds: int) -> None:
    print(f"measuring {row}", file=sys.stderr, flush=True)
    times = measure_in_turns(worlds, rounds=rounds + _IDLE_ROUNDS, loop_s=0.3)
    row = f"{row} ({format_time(statistics.median(times[_OFF]))})"
    table.rows[row] = {name: _ratios(times, name) for name in table.contestants}
    for name in table.contestants:
        spread = statistics.quantiles(table.rows[row][name], n=4)
        print(f"{row}, {name}: quartiles {spread[0]:.3f} to {spread[2]:.3f}", file=sys.stderr)


def _ratios(times: dict[str, list[float]], name: str) -> list[float]:
    """Each round's time over that without a recorder in the same round."""
    pairs = zip(times[name], times[_OFF], strict=True)
    return [one / off for one, off in list(pairs)[_IDLE_ROUNDS:]]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    labels = list(MODELS)
    parser.add_argument(
        "--model",
        type=lambda text: [labels[int(n) - 1] for n in text.split(",") if n],
        default=labels,
        help="; ".join(f"{n}: {label}" for n, label in enumerate(labels, 1)),
    )
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
