"""What looking inside costs: the flight recorder, switched on and off, and the timeline.

Two ranks sum 1000 tensors of 4 KB in place, again and again: a "step" that does nothing but start
operations, so that a model's is never as dear. The same jobs, with different settings, stay alive
together and are measured in turns; a figure is the median over rounds of the slower rank's time
over that of the job whose recorder is switched off in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report import OURS, Bar, Table, format_time, print_report
from worker_groups import Commands, GroupSpec, WorkerGroup, measure_in_turns, open_groups

_RANK_COUNT = 2
_TENSORS = 1000
_OFF = "recorder off"
_ON = OURS
_TIMELINE = "timeline"
_FORMS = {
    "asynchronous": "1000 x 4KB, one call each",
    "batch of DistributedOptimizer": "1000 x 4KB in one call",
}
_LIMIT = 1.01
_IDLE_ROUNDS = 2  # in which processes come to be what they stay


def main() -> int:
    args = _parse_arguments()
    names = [_OFF, _ON, _TIMELINE] if args.timeline else [_OFF, _ON]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        environments = {
            _OFF: {"HOROVOD_RECORDER_EVENTS": "0"},
            _ON: {},
            _TIMELINE: {"HOROVOD_TIMELINE": f"{folder}/timeline.json"},
        }

        def start(launcher: str, ranks: int, words: Sequence[str], _store: str) -> Commands:
            program = str(Path(sys.executable).with_name("horovodrun"))
            command = [program, "-np", str(ranks), sys.executable, *words]
            return [(command, environments[launcher])]

        specs = [GroupSpec(name, name, "horovod") for name in names]
        with open_groups(specs, _RANK_COUNT, "grouped_loop:GroupedLoop", start) as groups:
            table = _measure(groups, names, args.rounds)
    table.bars = [Bar(row, None, _LIMIT) for row in table.rows]
    return 0 if print_report([table], args.json) else 1


def _measure(groups: Sequence[WorkerGroup], names: Sequence[str], rounds: int) -> Table:
    title = "time of a step over that with the recorder switched off, medians over rounds"
    table = Table(title, names[1:], "{:.3f}".format)
    for group in groups:
        group.call("prepare", element_count=1024, tensor_count=_TENSORS)
    for form, row in _FORMS.items():
        forms = [_InForm(group, form) for group in groups]
        times = measure_in_turns(forms, rounds=rounds + _IDLE_ROUNDS, loop_s=0.2)
        step = statistics.median(times[_OFF])
        row = f"{row} ({format_time(step)})"
        table.rows[row] = {name: _ratios(times, name) for name in names[1:]}
        for name in names[1:]:
            spread = statistics.quantiles(table.rows[row][name], n=4)
            print(f"{row}, {name}: quartiles {spread[0]:.3f} to {spread[2]:.3f}", file=sys.stderr)
    return table


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
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--timeline", action="store_true", help="measure a timeline, too")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
