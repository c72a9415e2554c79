"""Draws README's chart: bars of a benchmark's medians, from the JSON that ``--json`` wrote.

    python benchmarks/training.py --json benchmarks/results/training.json
    python benchmarks/chart.py benchmarks/results/training.json docs/assets/training.svg

The line under the chart names the machine. Text is light where the reader's system is dark.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from report import format_time

_COLOURS = {"horovod": "#2a78b8", "ddp on gloo": "#e08a1e", "no communication": "#9aa5ad"}
_WIDTH, _LEFT, _BAR, _GAP, _TOP = 720, 250, 16, 18, 56
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.small { font-size: 11px; fill: #57606a }
.title { font-weight: 600; font-size: 15px }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9da7b1 } }
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("svg", type=Path)
    args = parser.parse_args()
    args.svg.write_text(draw(json.loads(args.json.read_text())))


def draw(document: Mapping[str, Any]) -> str:
    """An SVG of the first table, a group of bars for each row, each row with its own scale."""
    table = document["tables"][0]
    rows = table["medians"]
    names = [name for name in next(iter(rows.values())) if name in _COLOURS]
    height = _TOP + len(rows) * (len(names) * _BAR + _GAP) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(table['title'])}</title><style>{_STYLE}</style>",
        _text(12, 22, f"{table['title']} (shorter is better)", "title"),
        *_legend(names),
        *_bars(rows, names),
        _text(12, height - 8, _machine(document["machine"]), "small"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _legend(names: list[str]) -> Iterator[str]:
    x = 12
    for name in names:
        yield f'<rect x="{x}" y="32" width="10" height="10" fill="{_COLOURS[name]}"/>'
        yield _text(x + 15, 41, name, "small")
        x += 35 + 7 * len(name)


def _bars(rows: Mapping[str, Mapping[str, float]], names: list[str]) -> Iterator[str]:
    y = _TOP
    for row, medians in rows.items():
        yield _text(12, y + len(names) * _BAR / 2 + 4, row.partition(": ")[2] or row)
        scale = (_WIDTH - _LEFT - 80) / max(medians[name] for name in names)
        for name in names:
            width = medians[name] * scale
            yield (
                f'<rect x="{_LEFT}" y="{y + 1}" width="{width:.1f}" height="{_BAR - 2}" '
                f'fill="{_COLOURS[name]}"/>'
            )
            yield _text(_LEFT + width + 6, y + _BAR - 4, format_time(medians[name]), "small")
            y += _BAR
        y += _GAP


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cores']} cores, {machine['processor']}, on CPUs; one compute thread per rank; "
        "medians; each row has its own scale"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'


if __name__ == "__main__":
    main()
