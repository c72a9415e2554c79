"""GradientReducer with sparse gradients: what is gathered, what goes dense, what is asked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from horovod.core.operations import Average, Max, Sum
from horovod.errors import MismatchError
from horovod.torch import adapter, sparse_gradients
from horovod.torch.compression import Compression
from horovod.torch.gradient_reducer import GradientReducer

DENSE = 255


@pytest.fixture
def params():
    return [nn.Parameter(torch.zeros(4, 2)), nn.Parameter(torch.zeros(3))]


def reducer_of(params, op=Average, **options):
    reducer = GradientReducer(Compression.fp16, 1, op, **options)
    reducer.add(params, [f"allreduce.p{index}" for index in range(len(params))])
    return reducer


def step(reducer, params, grads):
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad
    reducer.synchronize()


def test_gathered_uncompressed_and_coalesced(engine, params, sparse_grad):
    reducer = reducer_of(params)
    step(reducer, params, [sparse_grad(1, 1, 3), torch.ones(3)])
    ((name, rows),) = engine.gathered
    assert name == "p0"
    assert rows.is_coalesced()
    assert torch.equal(rows.values(), torch.tensor([[2.0, 2.0], [1.0, 1.0]]))
    assert params[0].grad.is_sparse
    assert params[0].grad.is_coalesced()
    assert engine.names == [["allreduce.p1"]]
    assert engine.submissions[0].tensors[0].dtype == torch.float16


def test_held_back_until_the_ranks_agreed(engine, params, sparse_grad):
    reducer = reducer_of(params)
    embedding = nn.Embedding(4, 2, sparse=True)
    reducer.add([embedding.weight], ["allreduce.e"])
    embedding(torch.tensor([1])).sum().backward()
    assert reducer.is_pending
    assert engine.gathered == []
    reducer.synchronize()
    assert [name for name, _ in engine.gathered] == ["e"]
    assert engine.layouts == [[0, 0, 1]]


def test_asked_once_per_parameter(engine, params, sparse_grad):
    reducer = reducer_of(params)
    step(reducer, params, [None, torch.ones(3)])
    assert params[0].grad.layout is torch.strided
    step(reducer, params, [sparse_grad(2), torch.ones(3)])
    step(reducer, params, [sparse_grad(2), torch.ones(3)])
    assert engine.layouts == [[0, DENSE], [1]]
    assert len(engine.gathered) == 2


def test_ranks_with_other_parameters(engine, monkeypatch, params):
    """What disagrees is an operation of the optimizer's own, so its shape would say nothing."""

    def disagree(codes, **options):
        raise MismatchError("allreduce 'p0.layouts': shapes", operation="allreduce 'p0.layouts'")

    monkeypatch.setattr(adapter, "allreduce_", disagree)
    text = r"p0\.layouts.* this rank has 2: give the optimizer of every rank the same parameters"
    with pytest.raises(MismatchError, match=text) as caught:
        step(reducer_of(params), params, [torch.ones(4, 2), torch.ones(3)])
    assert caught.value.operation == "allreduce 'p0.layouts'"


def test_asked_anew_in_another_world(engine, monkeypatch, params, sparse_grad):
    reducer = reducer_of(params)
    step(reducer, params, [sparse_grad(2), torch.ones(3)])
    monkeypatch.setattr(sparse_gradients, "common_past", lambda: (-1, 0))
    step(reducer, params, [sparse_grad(2), torch.ones(3)])
    assert engine.layouts == [[1, DENSE], [1, DENSE]]


def test_missing_here_and_sparse_elsewhere(engine, params):
    engine.layout_elsewhere = 1
    reducer = reducer_of(params[:1])
    step(reducer, params[:1], [None])
    ((_, rows),) = engine.gathered
    assert rows.shape == (4, 2)
    assert rows._nnz() == 0
    assert params[0].grad.is_sparse
    step(reducer, params[:1], [None])
    assert len(engine.gathered) == 2
    assert engine.names == []


@pytest.mark.parametrize("elsewhere", [2, DENSE])
def test_sparse_here_and_otherwise_elsewhere(engine, params, sparse_grad, elsewhere):
    """Two sparse dimensions win over one, dense wins over sparse."""
    engine.layout_elsewhere = elsewhere
    reducer = reducer_of(params[:1])
    for _ in range(2):
        step(reducer, params[:1], [sparse_grad(1)])
        assert params[0].grad.is_sparse
        assert torch.equal(params[0].grad.to_dense(), sparse_grad(1).to_dense())
    if elsewhere == DENSE:
        assert engine.names == [["allreduce.p0"]] * 2
        assert engine.gathered == []
    else:
        assert [rows.sparse_dim() for _, rows in engine.gathered] == [2, 2]


def test_dense_here_and_sparse_before(engine, params, sparse_grad):
    reducer = reducer_of(params[:1])
    step(reducer, params[:1], [sparse_grad(1)])
    step(reducer, params[:1], [torch.ones(4, 2)])
    assert [rows._nnz() for _, rows in engine.gathered] == [1, 4]
    assert engine.names == []


@pytest.mark.parametrize(("op", "as_dense"), [(Average, True), (Max, False)])
def test_sent_dense_and_sparse_again(engine, params, sparse_grad, op, as_dense):
    reducer = reducer_of(params[:1], op, sparse_as_dense=as_dense)
    step(reducer, params[:1], [sparse_grad(0, 2)])
    (wire,) = engine.submissions[0].tensors
    assert wire.dtype == torch.float16
    assert wire.layout is torch.strided
    assert params[0].grad.is_sparse
    assert torch.equal(params[0].grad.to_dense(), sparse_grad(0, 2).to_dense())
    assert not reducer.is_pending


def test_scales(engine, params, sparse_grad):
    reducer = GradientReducer(Compression.none, 1, Sum, 0.5, 4.0)
    reducer.add(params[:1], ["p0"])
    step(reducer, params[:1], [sparse_grad(1)])
    ((_, rows),) = engine.gathered
    assert torch.equal(rows.values(), torch.full((1, 2), 0.5))
    assert torch.equal(params[0].grad.coalesce().values(), torch.full((1, 2), 2.0))


def test_optimizer_of_sparse_gradients_asks_nobody(engine, params):
    reducer = reducer_of(params[:1], is_sparse=True)
    step(reducer, params[:1], [None])
    assert engine.layouts == []
    assert params[0].grad.is_sparse


def test_dropped_before_it_was_sent(engine, params, sparse_grad):
    embedding = nn.Embedding(4, 2, sparse=True)
    reducer = reducer_of([embedding.weight])
    embedding(torch.tensor([1])).sum().backward()
    reducer.drop()
    assert not reducer.is_pending
    embedding.weight.grad = None
    embedding(torch.tensor([1])).sum().backward()
    reducer.synchronize()
    assert len(engine.gathered) == 1
