"""Tables and lines as text, for a terminal or a file. No text is markup: it may have brackets."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def plain_console(**details: Any) -> Console:
    """A console that prints every text as it is."""
    return Console(highlight=False, emoji=False, markup=False, **details)


def plain_table(*names: str, **details: Any) -> Table:
    """A table with these columns, between which there are no lines."""
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for name in names:
        table.add_column(name, **details)
    return table
