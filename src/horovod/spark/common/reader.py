"""A rank's shard of a Parquet dataset as batches of arrays, in bounded memory.

A thread decodes blocks of some thousand rows ahead; Arrow releases Python's lock. The consumer's
thread shuffles the blocks and cuts them into batches, which is cheap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader
from horovod.spark.common.columns import Array, Block, RowRange, Transformation, block_of, row_count

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


_BLOCK_BYTES = 2 * 1024 * 1024
_MOST_BLOCK_ROWS = 64 * 1024
# Blocks that wait for the consumer. These and the shuffling pool are all rows in memory.
_BLOCKS_AHEAD = 8
_POOL_BYTES = 32 * 1024 * 1024
# Row ranges that are read in turns, so that rows of different row groups are mixed.
_OPEN_RANGES = 4


class Reading(NamedTuple):
    """How rows are read.

    Args:
        names: the columns of batches.
        floats: the dtype of floating-point numbers; None keeps theirs.
        transformation: applied before the columns are selected.
        is_shuffled: read rows in another order in each pass.
        pool_rows: rows of the shuffling pool; None: as many as 32 MiB hold.
        seed: the seed of the order.
        worker_count: row batches that are decoded at the same time.
        is_ahead: a thread decodes; else the consumer's thread does.
        is_kept: keep the rows in memory after the first pass.
    """

    names: tuple[str, ...]
    floats: str | None = "float32"
    transformation: Transformation | None = None
    is_shuffled: bool = True
    pool_rows: int | None = None
    seed: int | None = None
    worker_count: int = 2
    is_ahead: bool = True
    is_kept: bool = False


@dataclass
class Blocks:
    """The rows of a shard, block by block; ``one_pass`` gives all of them."""

    shard: Sequence[RowRange]
    filesystem: Any
    reading: Reading
    _format: Any = field(default_factory=ds.ParquetFileFormat)

    def one_pass(self, random: np.random.Generator | None) -> Iterator[Block]:
        """All rows once; in a random order if ``random`` is given."""
        if random is None:
            return itertools.chain.from_iterable(map(self._read, self.shard))
        order = [self.shard[number] for number in random.permutation(len(self.shard))]
        return _in_turns([self._read(rows) for rows in order])

    def _read(self, rows: RowRange) -> Iterator[Block]:
        fragment = self._format.make_fragment(
            rows.group.path, filesystem=self.filesystem, row_groups=[rows.group.index]
        )
        first = 0
        for batch in self._batches(fragment):
            begin, end = max(rows.begin - first, 0), min(rows.end - first, batch.num_rows)
            first += batch.num_rows
            if begin < end:
                yield self._block(batch.slice(begin, end - begin))
            if first >= rows.end:
                return

    def _batches(self, fragment: Any) -> Iterator[pa.RecordBatch]:
        reading = self.reading
        group = fragment.metadata.row_group(fragment.row_groups[0].id)
        row_bytes = max(1, group.total_byte_size // group.num_rows)
        found: Iterator[pa.RecordBatch] = fragment.to_batches(
            columns=None if reading.transformation else list(reading.names),
            batch_size=int(np.clip(_BLOCK_BYTES // row_bytes, 1, _MOST_BLOCK_ROWS)),
            batch_readahead=reading.worker_count,
            fragment_readahead=1,
            use_threads=reading.worker_count > 1,
        )
        return found

    def _block(self, batch: pa.RecordBatch) -> Block:
        reading = self.reading
        if reading.transformation is None:
            return block_of(batch, reading.names, reading.floats)
        return reading.transformation.block(batch, reading.names, reading.floats)


class Batches:
    """Batches ``{column: array}``; each iteration is an epoch of ``steps`` of them.

    An epoch may be shorter or longer than a pass over the shard; the next epoch continues where the
    last one ended. The arrays belong to the caller.

    Args:
        blocks: the shard.
        batch_size: rows of a batch; the last batch of a pass can have fewer.
        steps: batches of an epoch.
    """

    def __init__(self, blocks: Blocks, batch_size: int, steps: int) -> None:
        self._blocks = blocks
        self._reading = blocks.reading
        self._batch_size = batch_size
        self._steps = steps
        self._random = np.random.default_rng(self._reading.seed)
        self._prefetch = _Prefetch(self._passes, _BLOCKS_AHEAD if self._reading.is_ahead else 0)
        self._source: Iterator[Block | None] | None = None
        self._kept: Block | None = None
        self._stream: Iterator[Block] = iter(())

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Block]:
        for _ in range(self._steps):
            batch = next(self._stream, None)
            if batch is None:
                self._stream = self._one_pass()
                batch = next(self._stream)
            yield batch

    def close(self) -> None:
        """End the thread."""
        self._source = None
        self._prefetch.close_async_loader()

    def _one_pass(self) -> Iterator[Block]:
        reading = self._reading
        if self._kept is not None:
            return cut(iter([self._kept]), self._batch_size, self._own_order(self._kept))
        rest = self._rest_of_pass()
        if reading.is_kept:
            self._kept = joined(list(rest))
            self.close()
            return self._one_pass()
        if not reading.is_shuffled:
            return cut(rest, self._batch_size)
        return mixed(rest, self._batch_size, self._random, _POOL_BYTES, reading.pool_rows)

    def _own_order(self, block: Block) -> Any:
        return self._random.permutation(row_count(block)) if self._reading.is_shuffled else None

    def _rest_of_pass(self) -> Iterator[Block]:
        """The blocks up to the end of the pass, which is a None."""
        if self._source is None:
            self._source = iter(self._prefetch)
        return iter(self._source.__next__, None)

    def _passes(self) -> Iterator[Block | None]:
        """Passes without an end; a None after each."""
        random = np.random.default_rng(self._reading.seed)
        while True:
            yield from self._blocks.one_pass(random if self._reading.is_shuffled else None)
            yield None


class _Prefetch(AsyncDataLoaderMixin, BaseDataLoader):
    """Prefetches blocks on a thread, over the ends of passes too."""

    def __init__(self, passes: Callable[[], Iterator[Block | None]], ahead: int) -> None:
        self._passes = passes
        super().__init__(async_loader_queue_size=ahead)

    def __len__(self) -> int:
        raise TypeError("the passes have no end")

    def _iterate(self) -> Iterator[Block | None]:
        return self._passes()


def _in_turns(readers: list[Iterator[Block]]) -> Iterator[Block]:
    """Blocks of the readers in turn; a few readers are open at a time."""
    waiting = iter(readers)
    current = list(itertools.islice(waiting, _OPEN_RANGES))
    while current:
        for reader in list(current):
            block = next(reader, None)
            if block is not None:
                yield block
                continue
            current.remove(reader)
            current.extend(itertools.islice(waiting, 1))
