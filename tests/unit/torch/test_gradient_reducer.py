"""When gradients are sent, in which batches, and what is waited for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from horovod.core.operations import Intent
from horovod.errors import HorovodInternalError
from horovod.torch import gradient_reducer
from horovod.torch.compression import Compression
from horovod.torch.gradient_reducer import GradientReducer

FLOATS_PER_BATCH = 8


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(gradient_reducer, "BATCH_BYTES", FLOATS_PER_BATCH * 4)


def reducer_of(params, compression=Compression.none, passes=1):
    reducer = GradientReducer(compression, passes, 0)
    reducer.add(params, [f"p{index}" for index in range(len(params))])
    return reducer


def make_params(*sizes):
    return [nn.Parameter(torch.ones(size)) for size in sizes]


def backward(*params):
    """Gradients become final in this order."""
    for param in params:
        param.sum().backward()


def test_batches_are_sent_as_they_fill(engine):
    a, b, c, d, e = make_params(4, 4, 2, 9, 3)
    reducer = reducer_of([a, b, c, d, e])
    backward(e, d)
    assert engine.names == [["p4", "p3"]]
    backward(c, b)
    assert len(engine.names) == 1
    backward(a)
    assert engine.names[1:] == [["p2", "p1", "p0"]]
    assert engine.intents == [Intent.MORE, Intent.COMPUTE]
    reducer.synchronize()
    assert engine.waited == [1, 2]
    assert not reducer.is_pending


def test_gradients_themselves_are_sent(engine):
    params = make_params(2, 3)
    reducer = reducer_of(params)
    backward(*params)
    sent = engine.submissions[0].tensors
    assert [tensor.data_ptr() for tensor in sent] == [param.grad.data_ptr() for param in params]
    reducer.synchronize()


def test_one_batch_without_spare_cores(engine):
    engine.spare_cores = False
    params = make_params(4, 40, 4)
    reducer = reducer_of(params)
    backward(params[0], params[1])
    assert engine.names == []
    backward(params[2])
    assert engine.names == [["p0", "p1", "p2"]]
    assert engine.intents == [Intent.COMPUTE]
    reducer.synchronize()


def test_one_hook_stays_without_spare_cores(engine):
    """After a complete step all gradients go at the end, whatever order they come in."""
    engine.spare_cores = False
    params = make_params(2, 2, 2)
    reducer = reducer_of(params)
    backward(params[0], params[2], params[1])
    reducer.synchronize()
    assert [bool(param._post_accumulate_grad_hooks) for param in params] == [False, True, False]
    backward(params[1], params[0])
    assert reducer.is_pending
    reducer.synchronize()
    assert sorted(engine.names[1]) == ["p0", "p1", "p2"]
    assert engine.intents == [Intent.COMPUTE, Intent.WAIT]
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        backward(params[1], params[1])


def test_missing_gradients_are_sent_as_zeros(engine):
    a, b = make_params(2, 2)
    reducer = reducer_of([a, b])
    backward(b)
    reducer.synchronize()
    assert engine.names == [["p1", "p0"]]
    assert torch.equal(a.grad, torch.zeros(2))
    assert engine.intents == [Intent.WAIT]


def test_counts_passes(engine):
    (a,) = make_params(2)
    reducer = reducer_of([a], passes=2)
    backward(a)
    assert not reducer.is_pending
    backward(a)
    assert engine.names == [["p0"]]
    with pytest.raises(AssertionError, match=r"'p0'.*increase backward_passes_per_step"):
        backward(a)
    reducer.synchronize()
    reducer.set_passes(1)
    backward(a)
    assert len(engine.names) == 2


def test_compressed_gradients_travel_as_copies(engine):
    params = make_params(2, 3)
    reducer = reducer_of(params, Compression.fp16)
    backward(*params)
    for wire in engine.submissions[0].tensors:
        assert wire.dtype == torch.float16
        wire.fill_(5)
    reducer.synchronize()
    for param in params:
        assert torch.equal(param.grad, torch.full_like(param, 5))


def test_odd_memory_order_travels_as_a_contiguous_copy(engine):
    param = nn.Parameter(torch.ones(3, 2).t())
    reducer = reducer_of([param])
    (param * torch.ones(3, 2).t()).sum().backward()
    param_grad = param.grad
    assert not param_grad.is_contiguous()
    (wire,) = engine.submissions[0].tensors
    assert wire.is_contiguous()
    wire.copy_(torch.arange(6.0).view(2, 3))
    reducer.synchronize()
    assert param.grad is param_grad
    assert torch.equal(param_grad, torch.arange(6.0).view(2, 3))


def test_failure_waits_for_all_and_starts_anew(engine):
    params = make_params(8, 8, 8)
    reducer = reducer_of(params)
    backward(*params)
    engine.failure = HorovodInternalError("rank 1 died")
    with pytest.raises(HorovodInternalError, match="rank 1 died"):
        reducer.synchronize()
    assert engine.waited == [1, 2, 3]
    assert not reducer.is_pending
    backward(*params)
    reducer.synchronize()
    assert engine.waited == [1, 2, 3, 4, 5, 6]


def test_drop_forgets_unsent_gradients(engine):
    params = make_params(8, 2)
    reducer = reducer_of(params)
    backward(params[0], params[1])
    reducer.drop()
    assert not reducer.is_pending
    submitted = len(engine.names)
    backward(params[1])
    assert len(engine.names) == submitted
    reducer.drop()
    assert not reducer.is_pending
    assert len(engine.names) == submitted


def test_hooks_end_with_the_reducer(engine):
    params = make_params(2)
    reducer = reducer_of(params)
    del reducer
    backward(*params)
    assert engine.names == []
    assert not params[0]._post_accumulate_grad_hooks
