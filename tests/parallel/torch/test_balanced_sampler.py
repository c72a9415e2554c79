"""BalancedSampler: slow ranks get fewer samples, and gradients are those of all samples."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import horovod.torch as hvd
from horovod.torch import balanced_sampler


class _Clock:
    """In place of ``time``: it goes on when this rank works."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def work(self, samples: int) -> None:
        """Rank r takes (r + 1) ms for a sample, and each rank 1 ms for a step."""
        self.now += 0.001 * (samples * (hvd.rank() + 1) + 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    found = _Clock()
    monkeypatch.setattr(balanced_sampler, "time", found)
    monkeypatch.setattr(balanced_sampler.world, "metrics", lambda: {"blocked_seconds": 0.0})
    return found


def sizes_of_ranks(batch: list[int]) -> list[int]:
    return hvd.allgather(torch.tensor([len(batch)]), name="sizes").tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_sizes_follow_the_speeds_within_20_steps(clock: _Clock, workers: int) -> None:
    data = torch.arange(6000, device="cpu")  # a forked worker cannot use a GPU
    sampler = hvd.BalancedSampler(data, batch_size=60)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
    for step, batch in enumerate(loader):
        if step == 20:
            break
        clock.work(len(batch))
        sampler.weight(len(batch))
    sizes = sizes_of_ranks(batch)
    assert sum(sizes) == sampler.step_size
    times = [size * (rank + 1) for rank, size in enumerate(sizes)]
    assert max(times) <= 1.1 * sum(times) / len(times)


def test_an_epoch_has_every_sample(clock: _Clock) -> None:
    sampler = hvd.BalancedSampler(range(503), batch_size=7)
    for _ in range(2):
        batches = []
        for batch in sampler:
            clock.work(len(batch))
            sampler.weight(len(batch))
            batches.append(batch)
        assert len(set(hvd.allgather_object(len(batches), "batches"))) == 1
        seen = [i for rank in hvd.allgather_object(batches, "epoch") for b in rank for i in b]
        assert set(seen) == set(range(503))
        assert len(seen) == len(batches) * sampler.step_size
    assert sampler.epoch == 1


def test_gradients_are_those_of_all_samples(clock: _Clock) -> None:
    torch.manual_seed(3)
    inputs = torch.randn(400, 5, dtype=torch.float64)
    model, alone = (nn.Linear(5, 1).double() for _ in range(2))
    alone.load_state_dict(model.state_dict())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        [(f"balanced.{n}", p) for n, p in model.named_parameters()],
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    alone.load_state_dict(model.state_dict())
    sampler = hvd.BalancedSampler(inputs, batch_size=10)
    for batch in sampler:
        clock.work(len(batch))
        optimizer.zero_grad()
        loss = model(inputs[batch]).square().mean() * sampler.weight(len(batch))
        loss.backward()
        optimizer.synchronize()
        whole = [i for rank in hvd.allgather_object(batch, "whole") for i in rank]
        alone.zero_grad()
        alone(inputs[whole]).square().mean().backward()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_what_is_left_of_an_epoch_in_another_world(clock: _Clock) -> None:
    first = hvd.BalancedSampler(range(100), batch_size=5, seed=4)
    done = []
    for step, batch in enumerate(first):
        if step == 3:
            break
        done += batch
        first.weight(len(batch))
    state = hvd.elastic.TorchState(sampler=first)
    state.commit()
    other = hvd.BalancedSampler(range(100), batch_size=5, seed=4)
    other.load_state_dict(first.state_dict())
    rest = [i for batch in other for i in batch][: 100 - 15 * hvd.size()]
    found = hvd.allgather_object((done, rest), "rest")
    assert {i for one in found for part in one for i in part} == set(range(100))


def test_a_forgotten_weight_is_noticed() -> None:
    sampler = hvd.BalancedSampler(range(8), batch_size=2)
    list(sampler)
    with pytest.warns(UserWarning, match=r"weight\(\) was never called"):
        list(sampler)


def test_batches_of_batches_are_refused() -> None:
    data = torch.arange(64, device="cpu")
    for options in ({}, {"batch_size": 2}, {"batch_size": 2, "drop_last": True}):
        loader = DataLoader(data, sampler=hvd.BalancedSampler(data, batch_size=2), **options)
        with pytest.raises(ValueError, match=r"use DataLoader\(data, batch_sampler=sampler\)"):
            next(iter(loader))
    whole = DataLoader(data, sampler=hvd.BalancedSampler(data, batch_size=2), batch_size=None)
    assert next(iter(whole)).shape == (2,)


def test_a_weight_twice_in_a_step_is_noticed() -> None:
    sampler = hvd.BalancedSampler(range(8 * hvd.size()), batch_size=2)
    for step, batch in enumerate(sampler):
        sampler.weight(len(batch))
        if step == 1:
            with pytest.warns(UserWarning, match=r"call 3 of weight\(\), but only 2 batches"):
                sampler.weight(len(batch))
            break


@pytest.mark.parametrize("workers", [0, 1])
def test_one_weight_in_each_step_does_not_warn(workers: int) -> None:
    """A loader takes batches ahead, and a program may stop early or begin anew."""
    data = torch.arange(16 * hvd.size(), device="cpu")
    sampler = hvd.BalancedSampler(data, batch_size=2, every=100)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
    for last in (2, 0, 7, 7):
        for step, batch in enumerate(loader):
            sampler.weight(len(batch))
            if step == last:
                break
    for step, batch in enumerate(loader):
        if step == 3:
            sampler.load_state_dict(sampler.state_dict())
        sampler.weight(len(batch))
    for batch in loader:
        sampler.weight(len(batch))
