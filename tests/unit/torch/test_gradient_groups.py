"""GradientReducer with groups, and with a compressor that brings its own exchange."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from horovod.core.operations import Intent
from horovod.torch import gradient_reducer
from horovod.torch.compression import Compression
from horovod.torch.gradient_hooks import split_by_bytes
from horovod.torch.gradient_reducer import GradientReducer


class Exchange:
    """Counts up the gradients in ``finish``; records the order of calls."""

    def __init__(self):
        self.calls = []

    def make_exchange(self, op, prescale, postscale, process_set):
        self.operation = (op, prescale, postscale, process_set.process_set_id)
        return self

    def start(self, names, gradients):
        self.calls.append(("start", names))
        return Round(self, names, gradients)


class Round:
    def __init__(self, exchange, names, gradients):
        self.exchange, self.names, self.gradients = exchange, names, gradients

    def finish(self):
        self.exchange.calls.append(("finish", self.names))
        for gradient in self.gradients:
            gradient.add_(1)


def make_params(*sizes):
    return [nn.Parameter(torch.ones(size)) for size in sizes]


def reducer_of(params, groups=(), compression=Compression.none, passes=1):
    reducer = GradientReducer(compression, passes, 0)
    reducer.add(params, [f"allreduce.p{index}" for index in range(len(params))], groups)
    return reducer


def backward(*params):
    """Gradients become final in this order."""
    for param in params:
        param.sum().backward()


def complete_step(reducer, params):
    backward(*params)
    reducer.synchronize()
    for param in params:
        param.grad = None


@pytest.mark.parametrize("spare_cores", [True, False])
def test_group_leaves_with_its_last_gradient(engine, spare_cores):
    engine.spare_cores = spare_cores
    a, b, c = make_params(2, 3, 4)
    reducer = reducer_of([a, b, c], [[a, c]])
    complete_step(reducer, [a, b, c])
    engine.submissions.clear()
    engine.waited.clear()
    backward(c)
    assert reducer.is_pending
    assert engine.names == []
    backward(a)
    assert engine.names == [["p0.group"]]
    sent = engine.submissions[0].tensors
    assert [tensor.data_ptr() for tensor in sent] == [a.grad.data_ptr(), c.grad.data_ptr()]
    backward(b)
    reducer.synchronize()
    assert engine.names == [["p0.group"], ["allreduce.p1"]]
    assert sorted(engine.waited) == [1, 2]
    assert not reducer.is_pending


def test_group_waits_until_its_layouts_are_known(engine):
    a, b = make_params(2, 3)
    reducer = reducer_of([a, b], [[b, a]])
    backward(a, b)
    assert engine.names == []
    reducer.synchronize()
    assert engine.names == [["p1.group"]]
    assert [tensor.numel() for tensor in engine.submissions[0].tensors] == [3, 2]


def test_missing_gradients_of_a_group_are_zeros(engine):
    a, b = make_params(2, 3)
    reducer = reducer_of([a, b], [[a, b]])
    complete_step(reducer, [a, b])
    backward(b)
    reducer.synchronize()
    assert engine.names == [["p0.group"], ["p0.group"]]
    assert torch.equal(a.grad, torch.zeros(2))


def test_group_counts_passes(engine):
    (a,) = make_params(2)
    reducer = reducer_of([a], [[a]], passes=2)
    backward(a, a)
    reducer.synchronize()
    backward(a)
    assert len(engine.names) == 1
    backward(a)
    assert len(engine.names) == 2
    with pytest.raises(AssertionError, match=r"'allreduce\.p0'.*increase"):
        backward(a)
    reducer.drop()
    assert not reducer.is_pending


def test_hooks_of_groups_stay_without_spare_cores(engine):
    engine.spare_cores = False
    params = make_params(2, 2, 2)
    reducer = reducer_of(params, [params[:2]])
    complete_step(reducer, params)
    assert all(param._post_accumulate_grad_hooks for param in params)


@pytest.mark.usefixtures("engine")
def test_hooks_of_groups_end_with_the_reducer():
    params = make_params(2, 2)
    reducer = reducer_of(params, [params])
    backward(params[0])
    del reducer
    backward(params[1])
    assert not params[0]._post_accumulate_grad_hooks


def test_exchange_gets_the_same_batches_everywhere(engine, monkeypatch):
    """Started when complete, finished in a fixed order."""
    monkeypatch.setattr(gradient_reducer, "BATCH_BYTES", 8)
    a, b, c = make_params(2, 1, 1)
    exchange = Exchange()
    reducer = reducer_of([a, b, c], compression=exchange)
    assert exchange.operation == (0, 1.0, 1.0, 0)
    complete_step(reducer, [a, b, c])
    exchange.calls.clear()
    backward(a)
    assert exchange.calls == [("start", ["p0"])]
    backward(b, c)
    reducer.synchronize()
    assert exchange.calls[1:] == [
        ("start", ["p2", "p1"]),
        ("finish", ["p2", "p1"]),
        ("finish", ["p0"]),
    ]
    assert torch.equal(a.grad, torch.full((2,), 2.0))
    assert engine.names == []


@pytest.mark.usefixtures("engine")
def test_exchange_keeps_to_given_groups_and_gets_later_parameters():
    a, b, c = make_params(1, 1, 1)
    exchange = Exchange()
    reducer = reducer_of([a, b], [[a]], compression=exchange)
    reducer.add([c], ["allreduce.late"])
    reducer.synchronize()
    started = [names for call, names in exchange.calls if call == "start"]
    assert started == [["p0"], ["p1"], ["late"]]
    assert torch.equal(c.grad, torch.ones(1))


def test_sparse_gradients_leave_their_group(engine, sparse_grad):
    a, b = make_params((4, 2), 3)
    reducer = reducer_of([a, b], [[a, b]])
    for _ in range(2):
        a.grad = sparse_grad(1)
        b.grad = torch.ones(3)
        reducer.synchronize()
    assert [name for name, _ in engine.gathered] == ["p0", "p0"]
    assert [[tensor.shape for tensor in sub.tensors] for sub in engine.submissions] == [
        [torch.Size([3])],
        [torch.Size([3])],
    ]
    assert engine.intents == [None, None]


def test_split_by_bytes():
    a, b, c, d = make_params(1, 1, 5, 1)
    assert split_by_bytes([a, b, c, d], 8) == [[d, c], [b, a]]
    assert split_by_bytes([a, b, c, d], 1 << 30) == [[d, c, b, a]]
    assert split_by_bytes([], 8) == []


def test_batches_beside_groups_keep_their_intents(engine):
    a, b = make_params(2, 3)
    reducer = reducer_of([a, b], [[a]])
    backward(b)
    assert engine.intents == [Intent.COMPUTE]
    backward(a)
    reducer.synchronize()
    assert engine.intents == [Intent.COMPUTE, None]
