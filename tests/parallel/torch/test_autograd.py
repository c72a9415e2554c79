"""Gradients through collectives, against a reference computed from all ranks' seeds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import horovod.torch as hvd

ARGUMENTS = [
    (hvd.Average, 1.0, 1.0),
    (hvd.Sum, 1.0, 1.0),
    (hvd.Sum, 2.0, 0.5),
    (hvd.Average, 3.0, 1.0),
]


def values(seed: int, *shape: int) -> Tensor:
    return torch.randn(
        *shape,
        dtype=torch.float64,
        generator=torch.Generator(torch.get_default_device()).manual_seed(seed),
    )


def of_all_ranks(offset: int, *shape: int) -> Tensor:
    return torch.stack([values(offset + rank, *shape) for rank in range(hvd.size())])


@pytest.mark.parametrize(("op", "prescale", "postscale"), ARGUMENTS)
def test_allreduce(op, prescale, postscale):
    inputs, weights = of_all_ranks(0, 3, 4), of_all_ranks(100, 3, 4)
    tensor = inputs[hvd.rank()].clone().requires_grad_()
    result = hvd.allreduce(
        tensor, name="x", op=op, prescale_factor=prescale, postscale_factor=postscale
    )
    (result * weights[hvd.rank()]).sum().backward()
    factor = prescale * postscale / (hvd.size() if op == hvd.Average else 1)
    torch.testing.assert_close(result, inputs.sum(0) * factor)
    torch.testing.assert_close(tensor.grad, weights.sum(0) * factor)


def test_allreduce_of_an_expanded_gradient():
    tensor = torch.ones(3, 4, requires_grad=True)
    hvd.allreduce(tensor, op=hvd.Sum).sum().backward()
    torch.testing.assert_close(tensor.grad, torch.full((3, 4), float(hvd.size())))


def test_allreduce_twice_differentiable():
    tensor = torch.tensor([2.0], requires_grad=True)
    result = hvd.allreduce(tensor.pow(3), op=hvd.Average)
    (first,) = torch.autograd.grad(result, tensor, create_graph=True)
    (second,) = torch.autograd.grad(first, tensor)
    torch.testing.assert_close(first, torch.tensor([12.0]))
    torch.testing.assert_close(second, torch.tensor([12.0]))


def test_allreduce_compressed():
    tensor = torch.arange(4.0, requires_grad=True)
    result = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert result.dtype == torch.float32
    result.sum().backward()
    torch.testing.assert_close(result, torch.arange(4.0) * hvd.size())
    torch.testing.assert_close(tensor.grad, torch.full((4,), float(hvd.size())))


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product])
def test_allreduce_without_a_gradient(op):
    tensor = torch.ones(2, requires_grad=True)
    result = hvd.allreduce(tensor, op=op)
    torch.testing.assert_close(result.detach(), torch.ones(2))
    with pytest.raises(NotImplementedError, match="Average and Sum"):
        result.sum().backward()


def test_legacy_average():
    with pytest.warns(DeprecationWarning, match="average"):
        result = hvd.allreduce(torch.ones(2), average=False)
    torch.testing.assert_close(result, torch.full((2,), float(hvd.size())))
    with pytest.raises(ValueError, match="op"):
        hvd.allreduce(torch.ones(2), average=False, op=hvd.Sum)


def test_allgather():
    rows = [rank % 3 for rank in range(hvd.size())]  # rank 0 and 3 give none
    inputs = [values(rank, rows[rank], 2) for rank in range(hvd.size())]
    weights = of_all_ranks(100, sum(rows), 2)
    tensor = inputs[hvd.rank()].clone().requires_grad_()
    result = hvd.allgather(tensor, name="x")
    (result * weights[hvd.rank()]).sum().backward()
    torch.testing.assert_close(result, torch.cat(inputs))
    expected = weights.mean(0).split(rows)[hvd.rank()]
    torch.testing.assert_close(tensor.grad, expected)


def test_a_gathered_group_of_which_some_have_no_gradient():
    mask, tensor = torch.tensor([True]), torch.ones(2, requires_grad=True)
    masks, result, counts = hvd.grouped_allgather([mask, tensor, torch.arange(3)], name="mixed")
    result.sum().backward()
    assert masks.tolist() == [True] * hvd.size()
    assert counts.tolist() == [0, 1, 2] * hvd.size()
    torch.testing.assert_close(tensor.grad, torch.ones(2))


def test_broadcast():
    root = hvd.size() - 1
    inputs, weights = of_all_ranks(0, 5), of_all_ranks(100, 5)
    tensor = inputs[hvd.rank()].clone().requires_grad_()
    result = hvd.broadcast(tensor, root, name="x")
    (result * weights[hvd.rank()]).sum().backward()
    torch.testing.assert_close(result, inputs[root])
    expected = weights.mean(0) if hvd.rank() == root else torch.zeros(5, dtype=torch.float64)
    torch.testing.assert_close(tensor.grad, expected)


def test_broadcast_twice_differentiable():
    """The ranks that are not the root reduce with it, where nothing depends on their inputs."""
    tensor = torch.tensor([2.0], requires_grad=True)
    result = hvd.broadcast(tensor, 0, name="twice")
    (first,) = torch.autograd.grad(result.pow(3), tensor, create_graph=True)
    (second,) = torch.autograd.grad(first, tensor)
    is_root = hvd.rank() == 0
    torch.testing.assert_close(first, torch.tensor([12.0 if is_root else 0.0]))
    torch.testing.assert_close(second, torch.tensor([12.0 / hvd.size() if is_root else 0.0]))


def test_no_graph_without_need():
    plain = torch.ones(2)
    needed = torch.ones(2, requires_grad=True)
    assert not hvd.allreduce(plain).requires_grad
    with torch.no_grad():
        results = [hvd.allreduce(needed), hvd.allgather(needed), hvd.broadcast(needed, 0)]
    assert not any(result.requires_grad for result in results)
    assert torch.equal(plain, torch.ones(2))
