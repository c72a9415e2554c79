"""DistributedOptimizer(sharded=True): optimizers and gradients that cannot be shared."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd


@pytest.mark.parametrize(
    ("cls", "arguments", "text"),
    [
        (torch.optim.LBFGS, {}, "LBFGS may not do"),
        (torch.optim.Adam, {"op": hvd.Adasum}, "needs op=Average or op=Sum, found Adasum"),
        (torch.optim.Adam, {"op": hvd.Min}, "found Min"),
        (torch.optim.Adam, {"compression": hvd.Compression.powersgd()}, "needs whole gradients"),
        (torch.optim.Adam, {"sharded": "yes"}, "must be False, True or 'elementwise'"),
    ],
)
def test_what_cannot_be_shared_is_refused(cls: type, arguments: dict, text: str) -> None:
    params = [nn.Parameter(torch.ones(3))]
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(cls(params), **{"sharded": True, **arguments})


def test_an_optimizer_that_the_program_vouches_for() -> None:
    class Mine(torch.optim.SGD):
        pass

    params = [nn.Parameter(torch.ones(3))]
    with pytest.raises(ValueError, match="Mine may not do"):
        hvd.DistributedOptimizer(Mine(params, lr=0.1), sharded=True)
    optimizer = hvd.DistributedOptimizer(Mine(params, lr=0.1), sharded="elementwise")
    params[0].sum().backward()
    optimizer.step()
    assert torch.equal(params[0], torch.full((3,), 0.9))


@pytest.mark.skipif("hvd.size() == 1")
def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), [("table", table.weight)], sharded=True
    )
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match=r"'table' is sparse; .*sparse_as_dense=True"):
        optimizer.step()


@pytest.mark.skipif("hvd.size() == 1")
def test_the_gradient_of_a_frozen_parameter_is_refused() -> None:
    """The original would step it, and every rank by its own gradient."""
    frozen, param = (nn.Parameter(torch.ones(3)) for _ in range(2))
    frozen.sum().backward()
    frozen.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([frozen, param], lr=0.1), [("frozen", frozen), ("p", param)], sharded=True
    )
    param.sum().backward()
    with pytest.raises(ValueError, match=r"'frozen' is not reduced, .*; set it to None"):
        optimizer.step()
    frozen.grad = None
    optimizer.step()
    torch.testing.assert_close(param.detach(), torch.full((3,), 0.9))
