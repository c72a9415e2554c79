"""Who reads what: a Parquet data set is cut into shares of equally many rows, one for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

__all__ = ["Piece", "Stretch", "pieces_of", "rows_of", "share_of", "steps_of"]

# Footers are small and far away.
_FOOTER_THREADS = 16


@dataclass(frozen=True)
class Piece:
    """A row group of a file."""

    path: str
    row_group: int
    rows: int


@dataclass(frozen=True)
class Stretch:
    """Rows ``begin`` to ``end`` of a piece."""

    piece: Piece
    begin: int
    end: int


def pieces_of(dataset: Any) -> list[Piece]:
    """All of a data set of pyarrow's with at least a row, in the order of their paths."""
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        fragments = sorted(dataset.get_fragments(), key=lambda fragment: str(fragment.path))
        metadata = pool.map(lambda fragment: fragment.metadata, fragments)
        return [
            Piece(fragment.path, group, footer.row_group(group).num_rows)
            for fragment, footer in zip(fragments, metadata, strict=True)
            for group in range(footer.num_row_groups)
            if footer.row_group(group).num_rows
        ]


def rows_of(pieces: Sequence[Piece]) -> int:
    """Rows of all of them."""
    return sum(piece.rows for piece in pieces)


def share_of(pieces: Sequence[Piece], rank: int, size: int, is_even: bool) -> list[Stretch]:
    """The rows of a rank, at least one.

    Every row is in one share, and shares differ by one row at most. With ``is_even`` they do not
    differ: some rows are in two shares then, so that all ranks do the same number of steps.
    """
    total = rows_of(pieces)
    begin, end = rank * total // size, (rank + 1) * total // size
    wanted = -(-total // size) if is_even else max(end - begin, 1)
    begin = min(begin, total - wanted)
    stretches, first = [], 0
    for piece in pieces:
        inside = (max(begin, first) - first, min(begin + wanted, first + piece.rows) - first)
        if inside[0] < inside[1]:
            stretches.append(Stretch(piece, *inside))
        first += piece.rows
    return stretches


def steps_of(stretches: Sequence[Stretch], batch_size: int) -> int:
    """Batches that a share is."""
    return -(-sum(stretch.end - stretch.begin for stretch in stretches) // batch_size)
