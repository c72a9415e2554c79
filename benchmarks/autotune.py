"""What autotuning finds for the four models of ``training.py``, and how good the defaults are.

Per model: two ranks train with autotuning until it has ended; what it ended with, and the best that
it tried, are then measured against the defaults, in turns, in jobs that are alive together. A
figure is the median over rounds of a round's step time with the defaults over that of the other.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from report import OURS, Bar, Table, format_time, print_report
from training_loop import MODELS
from worker_groups import Commands, GroupSpec, WorkerGroup, measure_in_turns, open_groups

_RANK_COUNT = 2
_DEFAULTS = "defaults"
_TUNED = OURS
_BEST = "best tried"
# Names of columns of the log, and of the variables that hold their values.
_VARIABLES = {
    "tensor_fusion_threshold": "HOROVOD_FUSION_THRESHOLD",
    "cycle_time_ms": "HOROVOD_CYCLE_TIME",
    "allreduce_block_kb": "HOROVOD_ALLREDUCE_BLOCK_KB",
    "small_allreduce_kb": "HOROVOD_SMALL_ALLREDUCE_KB",
}
# What chance does to the medians of two equal jobs.
_NEVER_SLOWER, _NEAR_THE_BEST = 0.99, 1.05
_MOST_STEPS = 20_000


def main() -> int:
    args = _parse_arguments()
    title = "step with the defaults / step with what autotuning says"
    table = Table(title, [_TUNED, _BEST], "{:.3f}".format, is_more_better=True)
    for model in args.model:
        table.rows[model] = _measure(model, args.quick)
    table.bars = [Bar(row, None, _NEVER_SLOWER) for row in table.rows]
    met = print_report([table, _distances(table)], args.json)
    return 0 if met else 1


def _measure(model: str, is_quick: bool) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = Path(folder) / "log.csv"
        tuning = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": str(log)}
        if is_quick:
            tuning["HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"] = "5"
        with _job(_TUNED, tuning) as (tuned,):
            _tune(tuned, model, log)
            best = _best_of(_rows(log))
            print(f"{model}: ended with {_row_text(_rows(log)[-1])}", file=sys.stderr)
            print(f"{model}: best tried {_row_text(best)}", file=sys.stderr, flush=True)
            pinned = {variable: best[column] for column, variable in _VARIABLES.items()}
            with _job(_DEFAULTS, {}) as (defaults,), _job(_BEST, pinned) as (tried,):
                for group in (defaults, tried):
                    group.call("prepare", model=model)
                times = measure_in_turns(
                    [defaults, tuned, tried],
                    rounds=5 if is_quick else 15,
                    loop_s=0.4 if is_quick else 1.0,
                )
    step = format_time(statistics.median(times[_DEFAULTS]))
    print(f"{model}: {step} with the defaults", file=sys.stderr, flush=True)
    return {name: _ratios(times, name) for name in (_TUNED, _BEST)}


def _job(name: str, environment: Mapping[str, str]) -> AbstractContextManager[list[WorkerGroup]]:
    def start(launcher: str, ranks: int, words: Sequence[str], _store: str) -> Commands:
        program = str(Path(sys.executable).with_name("horovodrun"))
        return [([program, "-np", str(ranks), sys.executable, *words], dict(environment))]

    spec = GroupSpec(name, "horovodrun", "horovod")
    return open_groups([spec], _RANK_COUNT, "training_loop:TrainingLoop", start)


def _tune(group: WorkerGroup, model: str, log: Path) -> None:
    group.call("prepare", model=model)
    for _ in range(0, _MOST_STEPS, 20):
        group.call("measure", iterations=20)
        if _rows(log)[-1]["phase"] == "result":
            return
    raise RuntimeError(f"{model}: autotuning has not ended in {_MOST_STEPS} steps")


def _rows(log: Path) -> list[dict[str, str]]:
    with log.open(newline="") as file:
        return list(csv.DictReader(file)) or [{"phase": ""}]


def _best_of(rows: Sequence[dict[str, str]]) -> dict[str, str]:
    searched = [row for row in rows if row["phase"] == "search"]
    return max(searched, key=lambda row: float(row["score"]))


def _row_text(row: Mapping[str, str]) -> str:
    return ", ".join(f"{column}={row[column]}" for column in (*_VARIABLES, "step_ms"))


def _ratios(times: dict[str, list[float]], name: str) -> list[float]:
    return [a / b for a, b in zip(times[_DEFAULTS], times[name], strict=True)]


def _distances(table: Table) -> Table:
    """The same figures, to be at most what the defaults may be worse by."""
    title = "the same of the best that was tried: how far the defaults are from it"
    distances = Table(title, [OURS], "{:.3f}".format)
    distances.rows = {row: {OURS: values[_BEST]} for row, values in table.rows.items()}
    distances.bars = [Bar(row, None, _NEAR_THE_BEST) for row in table.rows]
    return distances


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    labels = list(MODELS)
    parser.add_argument(
        "--model",
        type=lambda text: [labels[int(n) - 1] for n in text.split(",")],
        default=labels,
        help="; ".join(f"{n}: {label}" for n, label in enumerate(labels, 1)),
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
