"""Loaders over users' readers."""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from horovod.spark.data_loaders import pytorch_data_loaders as loaders

Rows = namedtuple("Rows", ["n"])


class Reader:
    """0 to 99 in blocks of 30, once unless ``reset``."""

    def __init__(self, num_epochs: int | None = 1) -> None:
        self.num_epochs = num_epochs
        self.resets = 0
        self._is_over = False

    def reset(self) -> None:
        self.resets += 1
        self._is_over = False

    def __iter__(self) -> Iterator[Any]:
        while not self._is_over:
            yield from (Rows(np.arange(begin, min(begin + 30, 100))) for begin in range(0, 100, 30))
            self._is_over = self.num_epochs is not None


def _read(loader: Any) -> list[int]:
    return [int(n) for batch in loader for n in batch["n"]]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_reader_is_read_once_in_each_epoch(is_ahead: bool) -> None:
    kind = loaders.PytorchAsyncDataLoader if is_ahead else loaders.PytorchDataLoader
    reader = Reader()
    loader = kind(reader=reader, batch_size=16, shuffling_queue_capacity=0)
    assert _read(loader) == _read(loader) == list(range(100))
    assert reader.resets == 1
    batch = next(iter(kind(reader=Reader(), batch_size=16, shuffling_queue_capacity=0)))
    assert isinstance(batch["n"], torch.Tensor)
    assert len(batch["n"]) == 16


def test_rows_are_mixed_and_epochs_limited() -> None:
    found = _read(loaders.PytorchDataLoader(Reader(), 16, 50))
    assert found != sorted(found) == list(range(100))
    limited = loaders.PytorchDataLoader(Reader(), 16, 0, limit_step_per_epoch=2)
    assert len(limited) == 2
    assert _read(limited) == list(range(32))


@pytest.mark.parametrize("is_ahead", [False, True])
def test_an_endless_reader_goes_on_where_an_epoch_ended(is_ahead: bool) -> None:
    kind = loaders.PytorchInfiniteAsyncDataLoader if is_ahead else loaders.PytorchInfiniteDataLoader
    loader = kind(
        reader=Reader(None), batch_size=30, shuffling_queue_capacity=0, limit_step_per_epoch=4
    )
    first, second = _read(loader), _read(loader)
    assert first + second == list(itertools.islice(itertools.cycle(range(100)), 240))
    with pytest.raises(ValueError, match="never ends"):
        kind(reader=Reader(2), batch_size=30, shuffling_queue_capacity=0)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_kept_rows_need_their_reader_once(is_ahead: bool) -> None:
    kind = loaders.PytorchInmemAsyncDataLoader if is_ahead else loaders.PytorchInmemDataLoader
    loader = kind(
        reader=Reader(), batch_size=25, num_epochs=2, shuffle=True, limit_step_per_epoch=4
    )
    first, second = _read(loader), _read(loader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))
    assert _read(loader) == []
    with pytest.raises(ValueError, match="limit_step_per_epoch"):
        kind(reader=Reader(), batch_size=25, num_epochs=2)
