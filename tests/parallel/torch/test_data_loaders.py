"""Data loaders whose forked workers ask for the rank of their process."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

import horovod.torch as hvd

LENGTH = 48


class Sharded(IterableDataset):
    """The numbers to ``LENGTH``, each on one worker of one rank."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        yield from range(hvd.rank() + hvd.size() * number, LENGTH, hvd.size() * workers)


class Reducing(IterableDataset):
    """A mistake: a collective in a worker."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield hvd.allreduce(torch.ones(1, device="cpu"), name="in a worker")


@pytest.fixture(autouse=True)
def on_the_host() -> Iterator[None]:
    """A forked worker cannot use a GPU."""
    before = torch.get_default_device()
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(before)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_divide_the_data_by_rank_and_size(workers: int) -> None:
    context = "fork" if workers else None
    loader = DataLoader(Sharded(), num_workers=workers, multiprocessing_context=context)
    for _ in range(2):
        own = sorted(int(batch) for batch in loader)
        assert own == list(range(hvd.rank(), LENGTH, hvd.size()))
        found = hvd.allgather(torch.tensor(own), name="all numbers")
        assert sorted(found.tolist()) == list(range(LENGTH))


def seed_by_rank(worker: int) -> None:
    random.seed(100 * hvd.rank() + worker)


class Random(TensorDataset):
    def __getitem__(self, index: int) -> int:
        return random.randrange(1 << 30)


def test_workers_seed_by_rank() -> None:
    loader = DataLoader(
        Random(torch.zeros(4)),
        num_workers=2,
        worker_init_fn=seed_by_rank,
        multiprocessing_context="fork",
    )
    own = [int(batch) for batch in loader]
    generators = [random.Random(100 * hvd.rank() + worker) for worker in range(2)]
    assert own == [generators[index % 2].randrange(1 << 30) for index in range(4)]


def test_a_collective_in_a_worker_is_refused_by_name() -> None:
    loader = DataLoader(Reducing(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(ValueError, match=rf"this process was forked from rank {hvd.rank()} \(pid"):
        list(loader)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="in the parent").item() == hvd.size()


def test_training_goes_on_beside_persistent_workers() -> None:
    loader = DataLoader(
        Sharded(), num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    sums = [sum(int(batch) for batch in loader)]
    hvd.shutdown()
    hvd.init()
    sums.append(sum(int(batch) for batch in loader))
    total = hvd.allreduce(torch.tensor(sums), op=hvd.Sum, name="sums")
    assert total.tolist() == [LENGTH * (LENGTH - 1) // 2] * 2
