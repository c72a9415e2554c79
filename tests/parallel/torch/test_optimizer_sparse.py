"""DistributedOptimizer with sparse gradients: gathered, dense on the way, missing, mixed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.torch import adapter


@pytest.fixture(params=[False, True], ids=["no_spare_cores", "spare_cores"], autouse=True)
def _cores(request, monkeypatch):
    monkeypatch.setattr(adapter, "spare_cores", lambda: request.param)


def make_model(sparse=True):
    """An embedding of six rows and a layer behind it, the same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.ModuleDict({"embed": nn.Embedding(6, 4, sparse=sparse), "out": nn.Linear(4, 2)})


def rows_of(rank, step=0):
    """Rows that overlap between ranks, some twice."""
    return torch.tensor([(rank + step) % 6, (rank + 2 * step + 1) % 6, rank % 6])


def loss_of(model, rows):
    return model["out"](model["embed"](rows)).pow(2).sum()


def dense(grad):
    return grad.to_dense() if grad.is_sparse else grad


@pytest.mark.parametrize("as_dense", [False, True])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("passes", [1, 2])
def test_training_equals_one_process(assert_same_everywhere, as_dense, op, groups, passes):
    model, reference = make_model(), make_model(sparse=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        model.named_parameters(),
        backward_passes_per_step=passes,
        op=op,
        groups=groups,
        sparse_as_dense=as_dense,
    )
    plain = torch.optim.SGD(reference.parameters(), lr=0.01)
    divisor = hvd.size() if op == hvd.Average else 1
    for step in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        for number in range(step, step + passes):
            loss_of(model, rows_of(hvd.rank(), number)).backward()
            for rank in range(hvd.size()):
                (loss_of(reference, rows_of(rank, number)) / divisor).backward()
        optimizer.step()
        plain.step()
        assert model["embed"].weight.grad.is_sparse
        torch.testing.assert_close(
            model["embed"].weight.grad.to_dense(), reference["embed"].weight.grad
        )
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert_same_everywhere(list(model.parameters()))


@pytest.mark.parametrize("as_dense", [False, True])
@pytest.mark.parametrize("first_step", [0, 2])
def test_gradient_on_one_rank_only(as_dense, first_step):
    """The embedding is used by the last rank alone; before ``first_step`` by nobody."""
    embedding = nn.Embedding(5, 2, sparse=True)
    weight = embedding.weight
    other = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight, other], lr=1.0), sparse_as_dense=as_dense
    )
    expected = weight.detach().clone()
    for step in range(4):
        optimizer.zero_grad()
        loss = other.sum()
        if hvd.rank() == hvd.size() - 1 and step >= first_step:
            loss = loss + embedding(torch.tensor([3])).sum()
        loss.backward()
        optimizer.step()
        if step >= first_step:
            assert weight.grad.is_sparse
            expected[3] -= 1 / hvd.size()
    torch.testing.assert_close(weight.detach(), expected)


def test_dense_on_one_rank_and_sparse_on_others(assert_same_everywhere):
    embedding = nn.Embedding(5, 2, sparse=hvd.rank() > 0)
    with torch.no_grad():
        embedding.weight.fill_(1.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0))
    for step in range(2):
        optimizer.zero_grad()
        embedding(torch.tensor([step, 4])).sum().backward()
        optimizer.step()
        assert embedding.weight.grad.is_sparse == (hvd.rank() > 0)
    assert_same_everywhere([embedding.weight])
    torch.testing.assert_close(
        embedding.weight.detach(), torch.tensor([[0.0], [0], [1], [1], [-1]]).expand(5, 2)
    )


def test_becomes_dense_later():
    """One rank uses the table as a matrix in later steps."""
    embedding = nn.Embedding(4, 2, sparse=True)
    weight = embedding.weight
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    for step in range(3):
        optimizer.zero_grad()
        if step and hvd.rank() == 0:
            weight.sum().backward()
        else:
            embedding(torch.tensor([1])).sum().backward()
        optimizer.step()
        share = (1 / hvd.size()) if step else 0.0
        expected = torch.full((4, 2), share)
        expected[1] = 1.0
        torch.testing.assert_close(dense(weight.grad), expected)


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_adam(assert_same_everywhere, as_dense):
    """It takes sparse gradients only, also where a rank has none."""
    embedding = nn.Embedding(6, 2, sparse=True)
    with torch.no_grad():
        embedding.weight.copy_(torch.arange(12.0).view(6, 2))
    reference = nn.Embedding(6, 2, sparse=True, _weight=embedding.weight.detach().clone())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(list(embedding.parameters()), lr=0.1), sparse_as_dense=as_dense
    )
    plain = torch.optim.SparseAdam(list(reference.parameters()), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        plain.zero_grad()
        if hvd.rank() == 0 and step:
            embedding(torch.tensor([step, 5])).sum().backward()
        optimizer.step()
        if step:
            (reference(torch.tensor([step, 5])).sum() / hvd.size()).backward()
        elif hvd.size() > 1:
            assert embedding.weight.grad.coalesce().values().numel() == 0
            reference.weight.grad = embedding.weight.grad.clone()
        plain.step()
    torch.testing.assert_close(embedding.weight, reference.weight)
    assert_same_everywhere([embedding.weight])


def test_clipping_and_reset():
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0))
    for _ in range(2):
        embedding(torch.tensor([2])).sum().backward()
        optimizer.synchronize()
        embedding.weight.grad.mul_(0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert not embedding.weight.grad.to_dense().any()


def test_zero_grad_in_flight():
    if hvd.size() == 1:
        pytest.skip("a world of one has nothing in flight")
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0))
    embedding(torch.tensor([2])).sum().backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.step()


def test_min_and_max_go_dense():
    for op, expected in ((hvd.Min, 1.0), (hvd.Max, float(hvd.size()))):
        embedding = nn.Embedding(4, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([embedding.weight], lr=1.0), op=op)
        (embedding(torch.tensor([2])).sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
        assert embedding.weight.grad.is_sparse
        torch.testing.assert_close(embedding.weight.grad.to_dense()[2], torch.full((2,), expected))
