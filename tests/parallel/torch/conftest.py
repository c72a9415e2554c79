"""Shared by the parallel torch tests: a world, a model and data that every rank knows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd


@pytest.fixture(scope="session", autouse=True)
def _world() -> None:
    # The ranks share the machine's cores: torch's thread pools would fight for them.
    torch.set_num_threads(1)
    hvd.init()


@pytest.fixture
def make_model() -> Callable[[], nn.Module]:
    """Makes a model with the same weights every time and on every rank."""

    def make() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    return make


@pytest.fixture
def batch_of() -> Callable[..., Tensor]:
    """``batch_of(rank, step=0)``: that rank's input ``[4, 6]``; every rank can compute all."""

    def batch(rank: int, step: int = 0) -> Tensor:
        generator = torch.Generator(torch.get_default_device()).manual_seed(1000 * step + rank)
        return torch.randn(4, 6, generator=generator)

    return batch


@pytest.fixture
def assert_same_everywhere() -> Callable[[list[Tensor]], None]:
    """Checks that tensors are bitwise the same on all ranks."""

    def check(tensors: list[Tensor]) -> None:
        mine = [tensor.detach().clone() for tensor in tensors]
        for other in hvd.allgather_object(mine, "same_everywhere"):
            for ours, theirs in zip(mine, other, strict=True):
                assert torch.equal(ours, theirs)

    return check
