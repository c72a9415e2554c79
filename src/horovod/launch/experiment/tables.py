"""Plans and results as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from horovod.launch.experiment.plan import ExperimentPlan
from horovod.launch.experiment.runner import Record

# The width where standard output is not a terminal.
_FILE_WIDTH = 1000


def show_plan(plan: ExperimentPlan, stream: TextIO) -> None:
    """Show what running ``plan`` would do."""
    console = _console(stream)
    console.print(_facts(plan))
    names = [parameter.name for parameter in plan.file.parameters]
    table = _table("Experiment", *names, "Run", "OUTPUT_DIR")
    for experiment in plan.experiments:
        lines = experiment.lines
        run = "\n".join(f"{number}. {line.rstrip()}" for number, line in enumerate(lines, start=1))
        values = [experiment.values[name] for name in names]
        _add(table, experiment.name, *values, run, _shown(experiment.output_directory))
    console.print(table)
    for note in (*map(str, plan.file.unused), plan.limit):
        if note:
            console.print(Text(note))


def show_results(records: Sequence[Record], stream: TextIO) -> None:
    """Show the state of all experiments, and how long each took."""
    names = list(records[0].experiment.values) if records else []
    table = _table("Experiment", *names, "State", "Time", "Reason", "OUTPUT_DIR")
    for record in records:
        values = [record.experiment.values[name] for name in names]
        time = _duration(record.ended_s - record.started_s) if record.started_s else ""
        folder = _shown(record.experiment.output_directory)
        _add(
            table, record.experiment.name, *values, record.state.value, time, record.reason, folder
        )
    _console(stream).print(table)


def _facts(plan: ExperimentPlan) -> Table:
    file = plan.file
    facts = Table.grid(padding=(0, 2))
    workers, processes = file.worker_count, file.processes_per_worker
    # Each host with the processes there, in the order of ranks.
    hosts = (", ".join(f"{name}:{n}" for name, n in s.hosts.items()) for s in plan.shares)
    what = "workers x processes" if file.workers else "without train.tensorflow.horovod"
    _add(facts, "project", file.project)
    _add(facts, "experiments", f"{len(plan.experiments)}, {len(plan.shares)} at a time")
    _add(facts, "processes", f"{workers} x {processes} = {file.demand.size} each ({what})")
    _add(facts, "GPUs", f"{workers} x {file.gpus} = {workers * file.gpus} each (workers x gpus)")
    _add(facts, "hosts", "\n".join(dict.fromkeys(hosts)))
    return facts


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for name in names:
        table.add_column(Text(name), overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    # As Text, so that brackets in a command are not markup.
    table.add_row(*map(Text, cells))


def _console(stream: TextIO) -> Console:
    return Console(
        file=stream,
        width=None if stream.isatty() else _FILE_WIDTH,
        highlight=False,
        emoji=False,
        markup=False,
    )


def _shown(path: Path) -> str:
    """The path relative to the current folder, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
