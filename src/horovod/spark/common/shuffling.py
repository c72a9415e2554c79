"""Cuts blocks of rows into batches, in order or shuffled; pure functions over iterators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from horovod.spark.common.columns import Array, Block, row_count

# Rows that are gathered at a time: many batches per call, without a copy of the whole pool.
_GATHERED = 8192


def joined(blocks: Sequence[Block]) -> Block:
    """The rows of all blocks as one block."""
    if len(blocks) == 1:
        return blocks[0]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def cut(blocks: Iterator[Block], batch_size: int, order: Array | None = None) -> Iterator[Block]:
    """Batches of the rows in order, or of the first block in ``order``; the last can be short."""
    if order is not None:
        yield from _sliced(_gathered(next(blocks), order), batch_size)
        return
    for batch in _sliced(blocks, batch_size):
        # Arrow's memory is read-only.
        yield {name: array.copy() for name, array in batch.items()}


def mixed(
    blocks: Iterator[Block],
    batch_size: int,
    random: np.random.Generator,
    pool_bytes: int,
    pool_rows: int | None = None,
) -> Iterator[Block]:
    """Batches of rows drawn from a pool of upcoming rows; the last can be short.

    Args:
        blocks: the rows.
        batch_size: rows of a batch.
        random: draws the rows.
        pool_bytes: size of the pool; it has at least the rows of two batches.
        pool_rows: rows of the pool, instead of ``pool_bytes``.
    """
    return _sliced(_drawn(blocks, 2 * batch_size, random, pool_bytes, pool_rows), batch_size)


def _drawn(
    blocks: Iterator[Block],
    least_rows: int,
    random: np.random.Generator,
    pool_bytes: int,
    pool_rows: int | None,
) -> Iterator[Block]:
    """Once the pool is full, new rows replace the drawn rows."""
    filling: list[Block] = []
    pool: Block = {}
    for block in blocks:
        if pool:
            yield from _exchanged(pool, block, random)
            continue
        filling.append(block)
        wanted = max(pool_rows or _rows_in(pool_bytes, block), least_rows)
        if sum(map(row_count, filling)) >= wanted:
            pool, filling = _owned(filling), []
    rest = pool or (joined(filling) if filling else {})
    if rest:
        yield from _gathered(rest, random.permutation(row_count(rest)))


def _exchanged(pool: Block, block: Block, random: np.random.Generator) -> Iterator[Block]:
    size, step = row_count(block), max(row_count(pool) // 2, 1)
    for begin in range(0, size, step):
        new_rows = _slice(block, begin, min(begin + step, size))
        places = random.choice(row_count(pool), row_count(new_rows), replace=False)
        yield {name: array.take(places, axis=0) for name, array in pool.items()}
        for name, array in pool.items():
            array[places] = new_rows[name]


def _owned(blocks: Sequence[Block]) -> Block:
    """Joined blocks, in writable arrays."""
    whole = joined(blocks)
    return whole if len(blocks) > 1 else {name: array.copy() for name, array in whole.items()}


def _gathered(block: Block, order: Array) -> Iterator[Block]:
    for begin in range(0, len(order), _GATHERED):
        rows = order[begin : begin + _GATHERED]
        yield {name: array.take(rows, axis=0) for name, array in block.items()}


def _sliced(blocks: Iterator[Block], batch_size: int) -> Iterator[Block]:
    """Batches that are views of blocks; only a batch over the end of a block is copied."""
    rest: Block | None = None
    for block in blocks:
        size, begin = row_count(block), 0
        if rest is not None:
            begin = min(batch_size - row_count(rest), size)
            rest = joined([rest, _slice(block, 0, begin)])
            if row_count(rest) < batch_size:
                continue
            yield rest
        full = begin + (size - begin) // batch_size * batch_size
        for first in range(begin, full, batch_size):
            yield _slice(block, first, first + batch_size)
        rest = _slice(block, full, size) if full < size else None
    if rest is not None:
        yield rest


def _rows_in(size_bytes: int, block: Block) -> int:
    block_bytes = sum(array.nbytes for array in block.values())
    return int(size_bytes * row_count(block) // max(block_bytes, 1))


def _slice(block: Block, begin: int, end: int) -> Block:
    return {name: array[begin:end] for name, array in block.items()}
