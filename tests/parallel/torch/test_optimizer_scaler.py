"""DistributedOptimizer under torch.amp.GradScaler: every way to write the step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.torch import adapter

DEVICE = torch.get_default_device().type


@pytest.fixture(params=[False, True], ids=["no_spare_cores", "spare_cores"], autouse=True)
def _cores(request, monkeypatch):
    monkeypatch.setattr(adapter, "spare_cores", lambda: request.param)


def step_plainly(scaler, optimizer, model):
    scaler.step(optimizer)


def step_unscaled(scaler, optimizer, model):
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)


def step_synchronized(scaler, optimizer, model):
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        scaler.step(optimizer)


def step_clipped(scaler, optimizer, model):
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1e6)  # far above: changes nothing
    with optimizer.skip_synchronize():
        scaler.step(optimizer)


WAYS = [step_plainly, step_unscaled, step_synchronized, step_clipped]


def loss_of(model, batch):
    return model(batch).pow(2).sum()


def train_alone(model, make_optimizer, batches, op, steps):
    """What all ranks together must come to: ``steps`` steps on every rank's batch."""
    optimizer = make_optimizer(model)
    divisor = len(batches) if op == hvd.Average else 1
    for _ in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(model, batch) for batch in batches) / divisor).backward()
        optimizer.step()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_equals_one_process(make_model, batch_of, assert_same_everywhere, way, fused, op):
    """Infinite gradients on one rank leave the step out on all."""
    model, reference = make_model(), make_model()

    def make_optimizer(of):
        # The momentum of torch's fused SGD is garbage after a first step that was left out.
        momentum = 0.0 if fused else 0.9
        return torch.optim.SGD(of.parameters(), lr=0.005, momentum=momentum, fused=fused)

    optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters(), op=op)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    for spoil in (True, False, True, False):
        optimizer.zero_grad()
        loss = loss_of(model, batch_of(hvd.rank()))
        scaler.scale(loss * float("inf") if spoil and hvd.rank() == 0 else loss).backward()
        way(scaler, optimizer, model)
        scaler.update()
    assert scaler.get_scale() == 256.0
    batches = [batch_of(rank) for rank in range(hvd.size())]
    train_alone(reference, make_optimizer, batches, op, 2)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert_same_everywhere(list(model.parameters()))


@pytest.mark.parametrize("way", WAYS)
def test_accumulation(make_model, batch_of, way):
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.005), backward_passes_per_step=2
    )
    scaler = torch.amp.GradScaler(DEVICE, init_scale=64.0)
    plain = torch.optim.SGD(reference.parameters(), lr=0.005)
    for _ in range(2):
        for number in range(2):
            scaler.scale(loss_of(model, batch_of(hvd.rank(), number))).backward()
        way(scaler, optimizer, model)
        scaler.update()
        optimizer.zero_grad()
        for number in range(2):
            for rank in range(hvd.size()):
                (loss_of(reference, batch_of(rank, number)) / hvd.size()).backward()
        plain.step()
        plain.zero_grad()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_missing_gradient_on_some_ranks():
    """Each rank uses the parameter of its own number only."""
    params = [nn.Parameter(torch.zeros(3)) for _ in range(hvd.size())]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(params[hvd.rank()].sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    for param in params:
        torch.testing.assert_close(param.data, torch.full((3,), -3.0 / hvd.size()))


def test_disabled_scaler(make_model, batch_of, assert_same_everywhere):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    scaler = torch.amp.GradScaler(DEVICE, enabled=False)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch_of(hvd.rank(), step))).backward()
        scaler.step(optimizer)
        scaler.update()
    assert_same_everywhere(list(model.parameters()))


def test_autocast(make_model, batch_of, assert_same_everywhere):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    scaler = torch.amp.GradScaler(DEVICE, init_scale=64.0)
    before = [param.detach().clone() for param in model.parameters()]
    for step in range(2):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            output = model(batch_of(hvd.rank(), step))
        assert output.dtype == torch.bfloat16
        scaler.scale(output.float().pow(2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert_same_everywhere(list(model.parameters()))
    for param, old in zip(model.parameters(), before, strict=True):
        assert not torch.equal(param, old)
