"""The result of autotuning for the four models of ``training.py``, against the defaults.

Two ranks train each model with autotuning until it has ended. Then the same job runs with the
defaults, with the result, and with the best settings tried, in turns. A figure is the median over
rounds of the step time with the defaults divided by that of the other.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from command_line import add_labels, make_parser
from report import OURS, Bar, Table, format_time, print_report
from training_loop import MODELS
from worker_groups import Commands, GroupSpec, Way, WorkerGroup, measure_in_turns, open_groups

_RANK_COUNT = 2
_DEFAULTS = "defaults"
_TUNED = OURS
_BEST = "best tried"
# Columns of the log, and the names of their settings.
_SETTINGS = {
    "tensor_fusion_threshold": "fusion_threshold_bytes",
    "cycle_time_ms": "cycle_time_ms",
    "allreduce_block_kb": "allreduce_block_kb",
    "small_allreduce_kb": "small_allreduce_kb",
}
# Limits that allow for noise.
_NEVER_SLOWER, _NEAR_THE_BEST = 0.99, 1.05
_MOST_STEPS = 20_000


def main() -> int:
    args = _parse_arguments()
    title = "step with the defaults / step with what autotuning ended with"
    table = Table(title, [_TUNED, _BEST], "{:.3f}".format, is_more_better=True)
    for model in args.model:
        table.rows[model] = _measure(model, args.quick)
    table.bars = [Bar(row, None, _NEVER_SLOWER) for row in table.rows]
    return print_report([table, _distances(table)], args.json)


def _measure(model: str, is_quick: bool) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = Path(folder) / "log.csv"
        environment = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(log)}
        if is_quick:
            environment["HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"] = "5"

        def start(_launcher: str, ranks: int, words: Sequence[str], _store: str) -> Commands:
            program = str(Path(sys.executable).with_name("horovodrun"))
            return [([program, "-np", str(ranks), sys.executable, *words], environment)]

        specs = [GroupSpec(OURS, "horovodrun", "horovod")]
        with open_groups(specs, _RANK_COUNT, "tuning_loop:TuningLoop", start) as (group,):
            rows = _tune(group, model, log)
            best = max((row for row in rows if row["phase"] == "search"), key=_score)
            found = {_DEFAULTS: rows[0], _TUNED: rows[-1], _BEST: best}
            ways = [Way(name, group, values=_values(row)) for name, row in found.items()]
            rounds, loop_s = (7, 0.3) if is_quick else (25, 0.5)
            times = measure_in_turns(ways, rounds=rounds, loop_s=loop_s)
    for name, row in found.items():
        step = format_time(statistics.median(times[name]))
        print(f"{model}, {name}: {step} with {_values(row)}", file=sys.stderr, flush=True)
    return {name: _ratios(times, name) for name in (_TUNED, _BEST)}


def _tune(group: WorkerGroup, model: str, log: Path) -> list[dict[str, str]]:
    """Train until autotuning has ended; the rows of its log."""
    group.call("prepare", model=model)
    for _ in range(0, _MOST_STEPS, 20):
        group.call("measure", iterations=20)
        with log.open(newline="") as file:
            rows = list(csv.DictReader(file))
        if rows and rows[-1]["phase"] == "result":
            return rows
    raise RuntimeError(f"{model}: autotuning has not ended after {_MOST_STEPS} steps")


def _score(row: Mapping[str, str]) -> float:
    return float(row["score"])


def _values(row: Mapping[str, str]) -> dict[str, float]:
    values = {name: float(row[column]) for column, name in _SETTINGS.items()}
    return {name: int(value) if value.is_integer() else value for name, value in values.items()}


def _ratios(times: dict[str, list[float]], name: str) -> list[float]:
    return [a / b for a, b in zip(times[_DEFAULTS], times[name], strict=True)]


def _distances(table: Table) -> Table:
    """How much slower the defaults are than the best, as a separate table with a limit."""
    distances = Table("step with the defaults / step with the best tried", [OURS], "{:.3f}".format)
    distances.rows = {row: {OURS: values[_BEST]} for row, values in table.rows.items()}
    distances.bars = [Bar(row, None, _NEAR_THE_BEST) for row in table.rows]
    return distances


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer and shorter rounds")
    add_labels(parser, "--model", list(MODELS))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
