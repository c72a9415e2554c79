"""What looking inside costs: the flight recorder, switched on and off, and the timeline.

Two ranks sum 1000 tensors of 4 KB in place, again and again: a "step" that does nothing but start
operations, so that a model's is never as dear. The same jobs, with different settings, stay alive
together and are measured in turns; a figure is the median over rounds of the slower rank's time,
and a bar the median of the rounds' own ratios to the recorder switched off.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report import Table, format_time, print_report
from worker_groups import Commands, GroupSpec, WorkerGroup, measure_in_turns, open_groups

_RANK_COUNT = 2
_TENSORS = 1000
_OFF = "recorder off"
_ON = "recorder on"
_TIMELINE = "timeline"
_FORMS = {
    "asynchronous": "1000 x 4KB, one call each",
    "batch of DistributedOptimizer": "1000 x 4KB",
}
_ONE = "one tensor"
_LIMIT = 1.01


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
    return 0 if print_report([table], args.json) else 1


def _measure(groups: Sequence[WorkerGroup], names: Sequence[str], rounds: int) -> Table:
    table = Table("one step of many small tensors, 2 ranks", names, format_time)
    for group in groups:
        group.call("prepare", element_count=1024, tensor_count=_TENSORS)
    for form, row in _FORMS.items():
        forms = [_InForm(group, form) for group in groups]
        times = measure_in_turns(forms, rounds=rounds, loop_s=0.2)
        table.rows[row] = times
        for name in names[1:]:
            ratios = [on / off for on, off in zip(times[name], times[_OFF], strict=True)]
            print(f"{row}: {name} / off = {statistics.median(ratios):.4f}")
    return table


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
