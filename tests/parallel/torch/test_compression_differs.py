"""Ranks whose optimizers have different compressions are told at once, and can go on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.errors import MismatchError

NONE, TOPK, POWERSGD = hvd.Compression.none, hvd.Compression.topk, hvd.Compression.powersgd


def make_optimizer(compression, **options):
    """Of a large and a small matrix, and of a bias."""
    shapes = {"large": (60, 50), "small": (3, 2), "bias": (50,)}
    params = {name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    inner = torch.optim.SGD(params.values(), lr=1.0)
    options = {"named_parameters": params.items(), "compression": compression, **options}
    return hvd.DistributedOptimizer(inner, **options), params


def step(optimizer, params, value=1.0):
    for param in params.values():
        param.grad = torch.full_like(param, value)
    optimizer.step()


@pytest.mark.parametrize("groups", [None, 1, 2])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NONE, TOPK(0.1)),
        (POWERSGD(1), NONE),
        (TOPK(0.1), POWERSGD(1)),
        (TOPK(0.1), TOPK(0.01)),
        (TOPK(0.1), TOPK(0.1, half=True)),
        (POWERSGD(1), POWERSGD(1, start_after=1)),
        (POWERSGD(1), POWERSGD(2)),
    ],
    ids=str,
)
def test_ranks_that_differ_are_told(first, second, groups):
    if hvd.size() == 1:
        pytest.skip("needs ranks that disagree")
    own = first if hvd.rank() == 0 else second
    optimizer, params = make_optimizer(own, groups=groups)
    text = "NoneCompressor" if own is NONE else str(own)
    for _ in range(2):
        with pytest.raises(MismatchError, match="Mismatched") as caught:
            step(optimizer, params)
        assert f"this rank has compression={text}" in str(caught.value)
        assert "allreduce" in caught.value.operation
    for compression in (first, second):
        optimizer, params = make_optimizer(compression, groups=groups)
        for _ in range(3):
            step(optimizer, params)
        assert params["bias"].unique().item() == -3.0


def test_a_rank_that_joined_before_its_first_step_goes_on():
    """It has not seen that the others are alike."""
    optimizer, params = make_optimizer(TOPK(0.1))
    if hvd.rank() == 0:
        step(optimizer, params)
        step(optimizer, params)
    hvd.join()
    hvd.broadcast_parameters(params, root_rank=0)
    step(optimizer, params)
    expected = torch.tensor(-2.0 / hvd.size() - 1.0)
    torch.testing.assert_close(params["bias"][0].detach(), expected)
