"""Loaders that read ahead: order, epochs, errors, and that closing ends them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import horovod.data
from horovod.data import data_loader_base
from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

TIMEOUT_S = 500


class Numbers(BaseDataLoader):
    """0, 1, ... ``count - 1``; says which thread read and how far it came."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.count = count
        self.fails_at = fails_at
        self.read: list[int] = []
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        for number in range(self.count):
            if number == self.fails_at:
                raise OSError(f"cannot read {number}")
            self.read.append(number)
            self.threads.add(threading.current_thread().name)
            yield number


class Doubled(Numbers):
    def _process_batch(self, batch: int) -> Any:
        return 2 * batch, threading.current_thread().name


class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    pass


class AsyncDoubled(AsyncDataLoaderMixin, Doubled):
    pass


def reader_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "horovod-data"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert reader_threads() == []


def test_both_paths_lead_to_the_same_classes() -> None:
    assert horovod.data.BaseDataLoader is BaseDataLoader
    assert horovod.data.AsyncDataLoaderMixin is AsyncDataLoaderMixin


def test_base_loader_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        BaseDataLoader()  # type: ignore[abstract]


def test_base_loader_processes_each_batch() -> None:
    assert [number for number, _ in Doubled(3)] == [0, 2, 4]


@pytest.mark.parametrize("queue_size", [0, 1, 2, 64])
def test_every_epoch_has_all_batches_in_order(queue_size: int) -> None:
    loader = AsyncNumbers(queue_size, False, 10)
    assert len(loader) == 10
    for _ in range(3):
        assert list(loader) == list(range(10))
    assert loader.threads == ({"MainThread"} if queue_size == 0 else {"horovod-data"})


def test_queue_size_may_be_a_keyword() -> None:
    loader = AsyncNumbers(async_loader_queue_size=3, count=4)
    assert list(loader) == [0, 1, 2, 3]
    assert loader.async_loader_queue_size == 3


def test_batches_are_processed_by_the_consumer() -> None:
    loader = AsyncDoubled(2, False, 3)
    assert list(loader) == [(0, "MainThread"), (2, "MainThread"), (4, "MainThread")]
    assert loader.threads == {"horovod-data"}


def test_reads_ahead_only_as_far_as_the_queue() -> None:
    reached = threading.Event()

    class Watched(AsyncNumbers):
        def _iterate(self) -> Iterator[int]:
            for number in super()._iterate():
                if number == 3:
                    reached.set()
                yield number

    loader = Watched(3, False, 100)
    batches = iter(loader)
    assert reached.wait(TIMEOUT_S)  # without one batch taken: three queued, one in hand
    assert loader.read == [0, 1, 2, 3]
    assert next(batches) == 0
    loader.close_async_loader()


@pytest.mark.parametrize("queue_size", [0, 1, 64])
def test_an_exception_arrives_after_the_batches_before_it(queue_size: int) -> None:
    loader = AsyncNumbers(queue_size, False, 5, fails_at=2)
    batches = iter(loader)
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(OSError, match="cannot read 2"):
        next(batches)
    loader.fails_at = None
    assert list(loader) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("queue_size", [1, 64])
def test_a_broken_off_epoch_leaves_no_thread_and_the_next_starts_anew(queue_size: int) -> None:
    loader = AsyncNumbers(queue_size, False, 1000)
    for number in loader:
        if number == 3:
            break
    assert next(iter(loader)) == 0
    assert list(loader) == list(range(1000))


def test_a_new_iteration_ends_the_one_before() -> None:
    loader = AsyncNumbers(1, False, 100)
    first = iter(loader)
    assert next(first) == 0
    second = iter(loader)
    assert list(first) == []
    assert list(second) == list(range(100))


def test_closing_in_an_epoch_ends_it() -> None:
    loader = AsyncNumbers(2, False, 100)
    batches = iter(loader)
    assert next(batches) == 0
    loader.close_async_loader()
    loader.close_async_loader()
    assert reader_threads() == []
    assert list(batches) == []


def test_closing_what_never_ran_is_nothing() -> None:
    AsyncNumbers(2, False, 3).close_async_loader()


def test_closing_gives_up_on_a_loader_that_never_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_loader_base, "_JOIN_TIMEOUT_S", 0.1)
    release = threading.Event()

    class Stuck(AsyncNumbers):
        def _iterate(self) -> Iterator[int]:
            release.wait(TIMEOUT_S)
            yield 0

    loader = Stuck(2, False, 1)
    batches = iter(loader)
    (thread,) = reader_threads()
    loader.close_async_loader()
    assert thread.is_alive()
    assert list(batches) == []
    release.set()
    thread.join(TIMEOUT_S)


def test_debug_says_what_the_thread_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(AsyncNumbers(2, True, 3)) == [0, 1, 2]
    text = capsys.readouterr().err
    assert "thread started" in text
    assert "thread ended after 3 batches" in text
