"""DistributedOptimizer(sharded=True) in programs that do more than to step."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd

Change = Callable[[list[nn.Parameter], int], None]


def distributed(params: list[nn.Parameter], sharded: bool, name: str = "") -> torch.optim.Optimizer:
    names = [(f"{name}{sharded}.{number}", param) for number, param in enumerate(params)]
    adam = torch.optim.Adam(params, lr=0.1)
    return hvd.DistributedOptimizer(adam, named_parameters=names, sharded=sharded)


def loss_of(params: list[nn.Parameter], step: int) -> Tensor:
    factor = 1.0 + step + hvd.rank()
    return sum((param * factor).square().sum() for param in params)


def step_once(params: list[nn.Parameter], optimizer: torch.optim.Optimizer, step: int = 0) -> None:
    optimizer.zero_grad()
    loss_of(params, step).backward()
    optimizer.step()


def after_steps(sizes: list[tuple[int, ...]], change: Change, sharded: bool) -> list[nn.Parameter]:
    generator = torch.Generator(torch.get_default_device()).manual_seed(3)
    params = [nn.Parameter(torch.randn(size, generator=generator)) for size in sizes]
    optimizer = distributed(params, sharded)
    for step in range(4):
        change(params, step)
        step_once(params, optimizer, step)
    return params


def test_a_scheduler_and_a_state_that_is_loaded_after_it_was_made() -> None:
    params = [nn.Parameter(torch.ones(5))]
    optimizer = distributed(params, sharded=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    step_once(params, optimizer)
    scheduler.step()
    state = hvd.broadcast_object(optimizer.state_dict())
    optimizer.load_state_dict(state)
    step_once(params, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_ranks_that_lack_other_gradients_right_after_loading() -> None:
    params = [nn.Parameter(torch.full((3,), 1.0 + number)) for number in range(3)]
    first, second, third = params
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=0.01),
        named_parameters=[(f"lacking.{number}", param) for number, param in enumerate(params)],
        groups=[[param] for param in params],
        op=hvd.Sum,
        sharded=True,
    )
    step_once(params, optimizer)
    optimizer.load_state_dict(hvd.broadcast_object(optimizer.state_dict()))
    before = [param.detach().clone() for param in params]
    optimizer.zero_grad()
    for param in (first, third if hvd.rank() == 0 else second):
        param.sum().backward()
    optimizer.step()
    for param, value, ranks in zip(params, before, (hvd.size(), hvd.size() - 1, 1), strict=True):
        torch.testing.assert_close(param.detach(), value - 0.01 * ranks)


def test_the_optimizer_goes_with_its_last_reference() -> None:
    params = [nn.Parameter(torch.ones(5))]
    optimizer = distributed(params, sharded=True)
    step_once(params, optimizer)
    reference = weakref.ref(optimizer)
    del optimizer
    assert reference() is None


def reorder_between(params: list[nn.Parameter], step: int) -> None:
    if step == 2:
        params[0].data = params[0].data.contiguous(memory_format=torch.channels_last)


def reorder_on_one_rank(params: list[nn.Parameter], step: int) -> None:
    if step == 0 and hvd.rank() == 0:
        reorder_between(params, 2)


@pytest.mark.parametrize("change", [reorder_between, reorder_on_one_rank])
def test_a_large_parameter_in_another_memory_order(change: Change) -> None:
    sizes = [(64, 64, 3, 3), (3,)]
    whole = after_steps(sizes, change, sharded=False)
    shared = after_steps(sizes, change, sharded=True)
    assert all(torch.equal(one, other) for one, other in zip(whole, shared, strict=True))


@pytest.mark.skipif("hvd.size() == 1")
def test_parameters_with_the_same_memory_are_refused() -> None:
    memory = torch.ones(10)
    params = [nn.Parameter(memory), nn.Parameter(memory.view(2, 5))]
    optimizer = distributed(params, sharded=True)
    with pytest.raises(ValueError, match=r"'True.1' and 'True.0' have the same memory"):
        step_once(params, optimizer)


def test_threads_with_an_optimizer_each() -> None:
    ends: dict[int, float] = {}

    def train(number: int) -> None:
        params = [nn.Parameter(torch.full((6,), float(number)))]
        optimizer = distributed(params, sharded=True, name=f"thread{number}.")
        for step in range(10):
            step_once(params, optimizer, step)
            state = optimizer.state_dict()["state"]
        moments = state[0]["exp_avg"].sum().item() if state else 0.0
        ends[number] = moments

    threads = [threading.Thread(target=train, args=(number,)) for number in (2, -2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=500)
    assert sorted(ends) == [-2, 2]
    assert ends[2] == -ends[-2]
