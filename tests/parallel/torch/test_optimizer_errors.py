"""DistributedOptimizer: misuse is told in words, and leaves a working optimizer."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

import horovod.torch as hvd


def train(optimizer, param):
    optimizer.zero_grad()
    (param.sum() * (hvd.rank() + 1)).backward()
    optimizer.step()
    torch.testing.assert_close(param.grad, torch.full_like(param, mean_of_ranks()))


def mean_of_ranks():
    return (hvd.size() + 1) / 2


@pytest.fixture
def param():
    return nn.Parameter(torch.zeros(3))


@pytest.fixture
def optimizer(param):
    return hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.1), [("param", param)])


def test_step_after_synchronize_warns_and_reduces_again(optimizer, param):
    (param.sum() * (hvd.rank() + 1)).backward()
    optimizer.synchronize()
    text = r"optimizer\.step\(\) called without optimizer\.skip_synchronize\(\)"
    with pytest.warns(UserWarning, match=text):
        optimizer.step()
    train(optimizer, param)


def test_correct_use_does_not_warn(optimizer, param):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            optimizer.zero_grad()
            param.sum().backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        train(optimizer, param)


@pytest.mark.skipif("hvd.size() == 1", reason="a world of one has nothing in flight")
@pytest.mark.parametrize("with_scaler", [False, True])
def test_skip_synchronize_without_synchronize(optimizer, param, with_scaler):
    """No step on gradients of this rank alone."""
    scaler = torch.amp.GradScaler(param.device.type, enabled=with_scaler, init_scale=2.0)
    scaler.scale(param.sum() * (hvd.rank() + 1)).backward()
    text = r"call optimizer\.synchronize\(\) before the skip_synchronize\(\) block"
    with pytest.raises(AssertionError, match=text), optimizer.skip_synchronize():
        scaler.step(optimizer)
    assert not param.any()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    torch.testing.assert_close(param.data, torch.full((3,), -0.1 * mean_of_ranks()))
    train(optimizer, param)


def test_zero_grad_in_flight(optimizer, param):
    if hvd.size() == 1:
        pytest.skip("a world of one has nothing in flight")
    param.sum().backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert torch.equal(param.grad, torch.zeros(3))
    train(optimizer, param)


def test_too_many_backward_passes(optimizer, param):
    if hvd.size() == 1:
        pytest.skip("a world of one does not count passes")
    param.sum().backward()
    with pytest.raises(AssertionError, match=r"'allreduce\.param'.*backward_passes_per_step"):
        param.sum().backward()
    optimizer.step()
    train(optimizer, param)


def test_an_optimizer_that_another_one_replaces(optimizer, param):
    """As in a notebook that runs a cell again, under another name."""
    if hvd.size() == 1:
        pytest.skip("a world of one does not count passes")
    train(optimizer, param)
    new = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.1), [("new", param)])
    param.sum().backward()
    new.step()
    with pytest.raises(AssertionError, match="another DistributedOptimizer has this parameter"):
        param.sum().backward()
    optimizer.synchronize()
    new.step()


def test_gradient_that_requires_a_gradient(optimizer, param):
    if hvd.size() == 1:
        pytest.skip("a world of one reduces nothing")
    loss = param.pow(2).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises against create_graph in backward
        with pytest.raises(AssertionError, match="requires a gradient itself"):
            loss.backward(create_graph=True)
    param.grad = None
    optimizer.step()
    train(optimizer, param)


def test_mismatch_is_raised_everywhere_and_leaves_a_working_optimizer(param):
    if hvd.size() == 1:
        pytest.skip("needs ranks that disagree")
    length = 3 if hvd.rank() == 0 else 4
    wrong = nn.Parameter(torch.zeros(length))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([wrong], lr=0.1), [("w", wrong)])
    wrong.sum().backward()
    text = r"'w'.* shapes: .*; if dtypes or numbers .* differ, .* compression=NoneCompressor"
    with pytest.raises(hvd.HorovodInternalError, match=text):
        optimizer.step()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.1), [("w", param)])
    train(optimizer, param)


WRAPPERS = {
    "DistributedOptimizer": [{}, {"op": hvd.Adasum}, {"sharded": True}],
    "DiLoCo": [{"sync_every": 2}],
    "LocalSGD": [{"sync_every": 2}],
}
WAYS = [(title, options) for title, many in WRAPPERS.items() for options in many]


@pytest.mark.skipif("hvd.size() == 1", reason="a world of one trains alone anyway")
@pytest.mark.parametrize(("title", "options"), WAYS, ids=str)
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_result_that_was_not_assigned_is_noticed(param, title, options, is_kept):
    original = torch.optim.SGD([param], lr=0.1)
    result = getattr(hvd, title)(original, **options)
    if not is_kept:
        del result
    with pytest.warns(UserWarning, match=rf"optimizer = hvd\.{title}\(optimizer, ...\)") as warned:
        original.step()
    assert warned[0].filename == __file__


@pytest.mark.parametrize(("title", "options"), WAYS, ids=str)
def test_an_optimizer_that_steps_needs_no_warning(param, title, options):
    original = torch.optim.SGD([param], lr=0.1)
    getattr(hvd, title)(original, **options)
    optimizer = getattr(hvd, title)(original, **options)
    for _ in range(2):
        param.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    del optimizer
    original.step()


def test_neither_copied_nor_pickled(optimizer):
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(optimizer)
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(optimizer)
    copied = copy.deepcopy(optimizer.state_dict())
    assert pickle.loads(pickle.dumps(copied)) == copied
