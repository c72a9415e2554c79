"""``horovodrun --doctor``: examines a job, and prints the result as text or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from horovod.core.base.checked import printable
from horovod.launch.doctor.examination import Examination, RankRow, examine
from horovod.launch.doctor.findings import Finding, Severity, duration_text
from horovod.launch.doctor.jobs import Evidence, NothingFoundError, find_job, gather
from horovod.launch.doctor.tables import plain_console, plain_table

_WIDTH = 100
_MOST_ROWS = 16
_STYLES = {Severity.PROBLEM: "bold red", Severity.ADVICE: "yellow", Severity.NOTE: "dim"}


def run_doctor(job: str, environ: Mapping[str, str], *, is_json: bool) -> int:
    """Examine ``job`` (see ``find_job``), print the result, and return the exit status.

    That is 0 without a problem, 1 with one, 2 without recordings. Blocks for half a second if the
    job runs, and for 5 s if ranks do not answer.
    """
    try:
        evidence = gather(find_job(job, environ))
    except (NothingFoundError, OSError) as error:
        print(f"horovodrun: --doctor: {printable(str(error))}", file=sys.stderr)
        return 2
    examination = examine(evidence.worlds, evidence.states, evidence.outcome)
    if is_json:
        text = json.dumps(as_json(evidence, examination), indent=2)
    else:
        text = as_text(evidence, examination, has_colour=sys.stdout.isatty())
    print(text)
    return 0 if examination.is_healthy else 1


def as_json(evidence: Evidence, examination: Examination) -> dict[str, Any]:
    """The whole result; durations in seconds."""
    world = examination.world
    return {
        "is_healthy": examination.is_healthy,
        "job": evidence.folder.name,
        "folder": str(evidence.folder),
        "is_running": evidence.is_running,
        "world": world.number,
        "size": world.size,
        "steps": 0 if examination.steps is None else examination.steps.count,
        "ranks": [_row_json(row) for row in examination.rows],
        "findings": [
            {**asdict(each), "severity": each.severity.value} for each in examination.findings
        ],
        "unreadable": list(evidence.problems),
    }


def _row_json(row: RankRow) -> dict[str, Any]:
    described: dict[str, Any] = {"rank": row.rank, "name": row.name, "state": row.state}
    if row.step is None:
        return described
    names = ("duration", "compute", "wait", "transport")
    figures = {f"{name}_seconds": getattr(row.step, f"{name}_ns") / 1e9 for name in names}
    return {**described, "step": figures}


def as_text(evidence: Evidence, examination: Examination, *, has_colour: bool) -> str:
    """The job, the findings and the figures of each rank."""
    file = StringIO()
    system = "standard" if has_colour else None
    console = plain_console(file=file, width=_WIDTH, force_terminal=has_colour, color_system=system)
    console.print(_shown(_headline(evidence, examination), style="bold"))
    console.print()
    for finding in examination.findings:
        _print_finding(console, finding)
    if not any(finding.severity is not Severity.NOTE for finding in examination.findings):
        has_steps = examination.steps is not None
        console.print(Text("Nothing is wrong" + (", and nothing would help." * has_steps or ".")))
        console.print()
    for problem in evidence.problems:
        console.print(_shown(f"not read: {problem}"))
    console.print(_table(examination))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _headline(evidence: Evidence, examination: Examination) -> str:
    world = examination.world
    count = f"{world.size} rank{'s' * (world.size > 1)}"
    hosts = f" on {len(world.hosts)} hosts" if len(world.hosts) > 1 else ""
    written = time.localtime(world.written_epoch_ns / 1e9)
    state = "running" if evidence.is_running else f"last heard of {time.strftime('%c', written)}"
    return f"Job {evidence.folder.name}: {count}{hosts}, {state}"


def _print_finding(console: Console, finding: Finding) -> None:
    severity = finding.severity
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=8)
    grid.add_column()
    advice = f"\n-> {finding.advice}" if finding.advice else ""
    body = _shown(finding.text + advice)
    grid.add_row(Text(severity.name, style=_STYLES[severity]), body)
    console.print(grid)
    for line in finding.lines:
        console.print(_shown(f"{'':12}{line}"), soft_wrap=True)
    console.print()


def _table(examination: Examination) -> Table:
    rows, steps = examination.rows, examination.steps
    has_figures = steps is not None
    table = plain_table("Rank", "State")
    for heading in ("Step", "Computes", "Waits", "Moves data") if has_figures else ():
        table.add_column(heading, justify="right")
    for row in _chosen(rows):
        table.add_row(*map(_shown, (row.name, row.state, *(_figures(row) if has_figures else ()))))
    if steps is not None:
        table.caption = _shown(
            f"a usual one of the last {steps.count} steps, which begin with '{steps.anchor}'"
            + ("" if len(rows) <= _MOST_ROWS else f"; {_MOST_ROWS} of {len(rows)} ranks")
        )
        table.caption_justify = "left"
    return table


def _shown(text: str, style: str = "") -> Text:
    """Text that may come from a file, made safe for a terminal."""
    return Text(printable(text), style=style)


def _chosen(rows: tuple[RankRow, ...]) -> list[RankRow]:
    """All rows, or of many the ranks in an unusual state and those that compute the longest."""
    if len(rows) <= _MOST_ROWS:
        return list(rows)
    usual = max({row.state for row in rows}, key=[row.state for row in rows].count)
    chosen = sorted(
        rows, key=lambda row: (row.state == usual, -(row.step.compute_ns if row.step else 0.0))
    )
    return sorted(chosen[:_MOST_ROWS], key=lambda row: row.rank)


def _figures(row: RankRow) -> tuple[str, ...]:
    step = row.step
    if step is None:
        return ("", "", "", "")
    parts = (step.compute_ns, step.wait_ns, step.transport_ns)
    shares = [f"{duration_text(part)} {part / step.duration_ns:4.0%}" for part in parts]
    return (duration_text(step.duration_ns), *shares)
