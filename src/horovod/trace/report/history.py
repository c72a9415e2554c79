"""Numbers over time in bounded memory: when there are too many rows, two become one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["COLUMNS", "History", "Row"]

# Sums over the time of a row.
COLUMNS = ("steps", "step_s", "bytes", "waiting_s", "blocked_s", "tensors", "buckets")


@dataclass
class Row:
    """What was counted from ``begin_s`` to ``end_s``."""

    begin_s: float
    end_s: float
    values: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0.0))

    def add(self, values: Mapping[str, float]) -> None:
        """Count ``values`` here, too."""
        for name, value in values.items():
            self.values[name] += value


class History:
    """Rows in the order of time, ``capacity`` at most; times are seconds of any one clock."""

    def __init__(self, capacity: int = 240, resolution_s: float = 1.0) -> None:
        self.rows: list[Row] = []
        self._capacity = capacity
        self._resolution_s = resolution_s

    def add(self, begin_s: float, end_s: float, values: Mapping[str, float]) -> None:
        """Count ``values``, which belong to this time; it begins after all others."""
        last = self.rows[-1] if self.rows else None
        if last is None or end_s - last.begin_s > self._resolution_s or begin_s > last.end_s:
            if len(self.rows) >= self._capacity:
                self._halve()
            self.rows.append(Row(begin_s, end_s))
        else:
            last.end_s = end_s
        self.rows[-1].add(values)

    def spread(self, name: str, begin_s: float, end_s: float) -> None:
        """Count time from ``begin_s`` to ``end_s``, each row the part that belongs to it."""
        for row in reversed(self.rows):
            if row.end_s <= begin_s:
                break
            row.values[name] += max(0.0, min(end_s, row.end_s) - max(begin_s, row.begin_s))

    def _halve(self) -> None:
        self._resolution_s *= 2
        halved = []
        for index in range(0, len(self.rows), 2):
            row = self.rows[index]
            if index + 1 < len(self.rows):
                row.end_s = self.rows[index + 1].end_s
                row.add(self.rows[index + 1].values)
            halved.append(row)
        self.rows = halved
