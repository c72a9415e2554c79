"""Loaders of batches of tensors over readers of blocks of rows, for users' data modules.

A reader is an iterable of blocks: mappings or named tuples of arrays with equally many rows. If it
has a method ``reset``, the loader calls it before it reads again. A reader whose ``num_epochs`` is
None never ends.

Loaders with ``Async`` in their names prefetch batches on a thread. They take keyword arguments
only, also ``async_loader_queue_size`` and ``debug_data_loader``. ``close_async_loader`` ends them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader
from horovod.spark.common.columns import Block
from horovod.spark.common.reader import cut, joined, mixed

__all__ = [
    "PytorchAsyncDataLoader",
    "PytorchDataLoader",
    "PytorchInfiniteAsyncDataLoader",
    "PytorchInfiniteDataLoader",
    "PytorchInmemAsyncDataLoader",
    "PytorchInmemDataLoader",
]

_NO_LIMIT = -1


class _TensorLoader(BaseDataLoader):
    name: str
    limit_step_per_epoch: int
    verbose: bool

    def __len__(self) -> int:
        if self.limit_step_per_epoch == _NO_LIMIT:
            raise TypeError("the number of batches is known only when the reader ends")
        return self.limit_step_per_epoch

    def _process_batch(self, batch: Block) -> dict[str, torch.Tensor]:
        return {name: torch.as_tensor(array) for name, array in batch.items()}

    def _log(self, text: str) -> None:
        if self.verbose:
            print(f"{self.name or type(self).__name__}: {text}", flush=True)


class PytorchDataLoader(_TensorLoader):
    """Batches ``{column: tensor}``; each iteration reads the reader once.

    Args:
        reader: the rows.
        batch_size: rows of a batch; the last one can have fewer.
        shuffling_queue_capacity: rows of the shuffling pool; 0 keeps the order.
        name: printed with ``verbose``.
        limit_step_per_epoch: batches of an iteration at most; -1: all.
        verbose: print when an iteration begins.
    """

    def __init__(
        self,
        reader: Iterable[Any],
        batch_size: int,
        shuffling_queue_capacity: int,
        name: str = "",
        limit_step_per_epoch: int = _NO_LIMIT,
        verbose: bool = False,
    ) -> None:
        self.reader = reader
        self.batch_size = batch_size
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self.name = name
        self.limit_step_per_epoch = limit_step_per_epoch
        self.verbose = verbose
        self._random = np.random.default_rng()
        self._is_read = False
        super().__init__()

    def _iterate(self) -> Iterator[Block]:
        self._log("an epoch begins")
        batches = self._batches()
        if self.limit_step_per_epoch == _NO_LIMIT:
            return batches
        return itertools.islice(batches, self.limit_step_per_epoch)

    def _batches(self) -> Iterator[Block]:
        """The batches of all rows of the reader."""
        if self._is_read and hasattr(self.reader, "reset"):
            self.reader.reset()
        self._is_read = True
        blocks, capacity = _blocks(self.reader), self.shuffling_queue_capacity
        if capacity <= 0:
            return cut(blocks, self.batch_size)
        return mixed(blocks, self.batch_size, self._random, 0, capacity)


class PytorchInfiniteDataLoader(PytorchDataLoader):
    """Continues where the last iteration ended; for readers that never end.

    Raises:
        ValueError: the reader's ``num_epochs`` is not None.
    """

    def __init__(self, reader: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        epochs = getattr(reader, "num_epochs", None)
        if epochs is not None:
            raise ValueError(
                f"an infinite loader needs a reader that never ends, not {epochs} epochs"
            )
        super().__init__(reader, *args, **kwargs)
        self._endless: Iterator[Block] | None = None

    def _batches(self) -> Iterator[Block]:
        if self._endless is None:
            self._endless = super()._batches()
        return self._endless


class PytorchInmemDataLoader(_TensorLoader):
    """Reads the reader once and keeps the rows; batches ``{column: tensor}``.

    Args:
        reader: the rows; it has to end.
        batch_size: rows of a batch.
        num_epochs: the number of iterations; None: no limit.
        name: printed with ``verbose``.
        shuffle: use another order of the rows in each iteration.
        limit_step_per_epoch: batches of an iteration; further ones come in the next iteration.
        verbose: print when an iteration begins.

    Raises:
        ValueError: there is no limit.
    """

    def __init__(
        self,
        reader: Iterable[Any],
        batch_size: int,
        num_epochs: int | None,
        name: str = "",
        shuffle: bool = False,
        limit_step_per_epoch: int = _NO_LIMIT,
        verbose: bool = False,
    ) -> None:
        if limit_step_per_epoch <= 0:
            raise ValueError("limit_step_per_epoch has to be set for a loader that keeps its rows")
        self.batch_size = batch_size
        self.num_epochs = num_epochs
        self.name = name
        self.shuffle = shuffle
        self.limit_step_per_epoch = limit_step_per_epoch
        self.verbose = verbose
        self._rows = joined(list(_blocks(reader)))
        self._random = np.random.default_rng()
        self._begun = 0
        self._stream = itertools.chain.from_iterable(self._one_pass() for _ in itertools.count())
        super().__init__()

    def _iterate(self) -> Iterator[Block]:
        if self.num_epochs is not None and self._begun >= self.num_epochs:
            return iter(())
        self._begun += 1
        self._log(f"epoch {self._begun} begins")
        return itertools.islice(self._stream, self.limit_step_per_epoch)

    def _one_pass(self) -> Iterator[Block]:
        count = len(next(iter(self._rows.values())))
        order = self._random.permutation(count) if self.shuffle else None
        return cut(iter([self._rows]), self.batch_size, order)


class PytorchAsyncDataLoader(AsyncDataLoaderMixin, PytorchDataLoader):
    """``PytorchDataLoader`` that prefetches."""


class PytorchInfiniteAsyncDataLoader(AsyncDataLoaderMixin, PytorchInfiniteDataLoader):
    """``PytorchInfiniteDataLoader`` that prefetches."""


class PytorchInmemAsyncDataLoader(AsyncDataLoaderMixin, PytorchInmemDataLoader):
    """``PytorchInmemDataLoader`` that prefetches."""


def _blocks(reader: Iterable[Any]) -> Iterator[Block]:
    for rows in reader:
        named: Mapping[str, Any] = rows if isinstance(rows, Mapping) else rows._asdict()
        yield {name: np.asarray(array) for name, array in named.items()}
