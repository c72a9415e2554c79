"""op=Adasum: what leaves, and what its methods do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from horovod.core.operations import Adasum
from horovod.core.process_sets import global_process_set
from horovod.torch import optimizer as optimizer_module
from horovod.torch.compression import Compression
from horovod.torch.optimizer import DistributedOptimizer


@pytest.fixture
def params():
    return [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]


def wrapped(params, **options):
    sgd = torch.optim.SGD(params, lr=0.5)
    names = [("a", params[0]), ("b", params[1])]
    return DistributedOptimizer(sgd, names, op=Adasum, **options)


def test_all_deltas_leave_in_one_batch(engine, params):
    optimizer = wrapped(params)
    assert type(optimizer).__name__ == "SGD"
    params[0].sum().backward()
    assert engine.names == []
    optimizer.step()
    (submission,) = engine.submissions
    assert submission.names == ["allreduce.a", "allreduce.b"]
    assert submission.operation == (Adasum, 1.0, 1.0)
    assert submission.process_set is global_process_set
    assert torch.equal(submission.tensors[0], torch.full((2,), -0.5))
    assert torch.equal(submission.tensors[1], torch.zeros(3))
    assert torch.equal(params[0].data, torch.full((2,), 0.5))
    assert torch.equal(params[1].data, torch.ones(3))


def test_compression(engine, params):
    optimizer = wrapped(params, compression=Compression.fp16)
    params[0].sum().backward()
    optimizer.step()
    assert {tensor.dtype for tensor in engine.submissions[0].tensors} == {torch.float16}
    assert torch.equal(params[0].data, torch.full((2,), 0.5))


def test_synchronize_and_skip_synchronize(engine, params):
    optimizer = wrapped(params)
    optimizer.synchronize()
    assert engine.names == []
    with pytest.raises(AssertionError, match="no meaning"), optimizer.skip_synchronize():
        pass


def test_accumulation(engine, params):
    optimizer = wrapped(params, backward_passes_per_step=2)
    assert optimizer.backward_passes_per_step == 2
    params[0].sum().backward()
    params[0].sum().backward()
    optimizer.step()
    assert torch.equal(params[0].data, torch.zeros(2))
    optimizer.set_backward_passes_per_step(3)
    with pytest.raises(ValueError, match="at least 1"):
        optimizer.set_backward_passes_per_step(0)
    assert len(engine.names) == 1


def test_frozen_parameters_travel_once_they_were_trained(engine, params):
    params[1].requires_grad_(False)
    optimizer = wrapped(params)
    for needs in (False, True, False):
        params[1].requires_grad_(needs)
        optimizer.step()
    both = ["allreduce.a", "allreduce.b"]
    assert engine.names == [["allreduce.a"], both, both]


def test_group_added_later(engine, params):
    optimizer = wrapped(params)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    optimizer.step()
    assert engine.names[0][2] == "allreduce.allreduce.noname.1.0"


@pytest.mark.usefixtures("engine")
def test_predivide_factor_is_refused(params):
    with pytest.raises(ValueError, match="needs op=Average"):
        wrapped(params, gradient_predivide_factor=2.0)


def test_world_of_one_steps_alone(engine, monkeypatch, params):
    monkeypatch.setattr(optimizer_module, "size", lambda: 1)
    optimizer = wrapped(params)
    params[0].sum().backward()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert engine.names == []
    assert torch.equal(params[0].data, torch.full((2,), 0.5))


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has none for CPUs")
@pytest.mark.parametrize("fused", [False, True])
def test_infinite_gradients_take_part_with_no_change(engine, params, fused):
    sgd = torch.optim.SGD(params, lr=0.5, fused=fused)
    optimizer = DistributedOptimizer(sgd, op=Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor, expected in ((float("inf"), 1.0), (1.0, 0.5)):
        optimizer.zero_grad()
        scaler.scale(params[0].sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(params[0].data, torch.full((2,), expected))
    assert len(engine.names) == 2
    assert scaler.get_scale() == 4.0
