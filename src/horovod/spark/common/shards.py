"""A Parquet dataset is cut into shards of equally many rows, one for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

# Reading a footer takes a round trip and few bytes.
_FOOTER_THREADS = 16


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file."""

    path: str
    index: int
    rows: int


@dataclass(frozen=True)
class RowRange:
    """Rows ``begin`` to ``end`` of a row group."""

    group: RowGroup
    begin: int
    end: int


def row_groups_of(dataset: Any) -> list[RowGroup]:
    """The row groups of a dataset of pyarrow that have rows, in the order of their paths."""
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        fragments = sorted(dataset.get_fragments(), key=lambda fragment: str(fragment.path))
        metadata = pool.map(lambda fragment: fragment.metadata, fragments)
        return [
            RowGroup(fragment.path, group, footer.row_group(group).num_rows)
            for fragment, footer in zip(fragments, metadata, strict=True)
            for group in range(footer.num_row_groups)
            if footer.row_group(group).num_rows
        ]


def rows_of(groups: Sequence[RowGroup]) -> int:
    """The number of rows of all row groups."""
    return sum(group.rows for group in groups)


def shard_of(groups: Sequence[RowGroup], rank: int, size: int, is_even: bool) -> list[RowRange]:
    """The rows of a rank, at least one.

    Every row is in one shard, and the sizes of shards differ by at most one row. With ``is_even``
    all shards have the same size, so all ranks make the same number of steps; then some rows are in
    two shards.
    """
    total = rows_of(groups)
    begin, end = rank * total // size, (rank + 1) * total // size
    wanted = -(-total // size) if is_even else max(end - begin, 1)
    begin = min(begin, total - wanted)
    ranges, first = [], 0
    for group in groups:
        inside = (max(begin, first) - first, min(begin + wanted, first + group.rows) - first)
        if inside[0] < inside[1]:
            ranges.append(RowRange(group, *inside))
        first += group.rows
    return ranges


def steps_of(shard: Sequence[RowRange], batch_size: int) -> int:
    """The number of batches of a shard."""
    return -(-sum(rows.end - rows.begin for rows in shard) // batch_size)
