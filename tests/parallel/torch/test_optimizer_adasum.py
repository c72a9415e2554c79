"""DistributedOptimizer with op=Adasum: local steps, combined."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd


def loss_of(model, batch):
    return model(batch).pow(2).sum()


def combined(model, deltas):
    """Where the parameters belong after these changes of this rank."""
    return [
        param.detach() + hvd.allreduce(delta, op=hvd.Adasum)
        for param, delta in zip(model.parameters(), deltas, strict=True)
    ]


def step_alone(make_model, make_optimizer, state, batches):
    """What one step of this rank alone changes, starting from ``state``."""
    model = make_model()
    model.load_state_dict(state)
    optimizer = make_optimizer(model)
    for batch in batches:
        loss_of(model, batch).backward()
    before = [param.detach().clone() for param in model.parameters()]
    optimizer.step()
    return [new.detach() - old for new, old in zip(model.parameters(), before, strict=True)]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16])
def test_combines_local_steps(make_model, batch_of, assert_same_everywhere, passes, compression):
    def make_optimizer(of):
        return torch.optim.SGD(of.parameters(), lr=0.01, weight_decay=0.1)

    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        make_optimizer(model),
        model.named_parameters(),
        compression,
        passes,
        op=hvd.Adasum,
    )
    for step in range(3):
        batches = [batch_of(hvd.rank(), passes * step + number) for number in range(passes)]
        deltas = step_alone(make_model, make_optimizer, model.state_dict(), batches)
        expected = combined(model, deltas)
        optimizer.zero_grad()
        for batch in batches:
            loss_of(model, batch).backward()
        optimizer.step()
        tolerance = {"rtol": 1e-6, "atol": 1e-6}
        if compression is hvd.Compression.fp16 and hvd.size() > 1:
            tolerance = {"rtol": 4e-3, "atol": 4e-3}
        for param, value in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(param.detach(), value, **tolerance)
        assert_same_everywhere(list(model.parameters()))


def test_parallel_steps_average_and_orthogonal_ones_add_up():
    alike = nn.Parameter(torch.zeros(4))
    apart = nn.Parameter(torch.zeros(hvd.size()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([alike, apart], lr=1.0), op=hvd.Adasum)
    (alike.sum() + apart[hvd.rank()]).backward()
    optimizer.step()
    torch.testing.assert_close(alike.data, torch.full((4,), -1.0))
    torch.testing.assert_close(apart.data, torch.full((hvd.size(),), -1.0))


def test_gradients_missing_on_some_ranks(assert_same_everywhere):
    """A rank without a gradient takes part with no change."""
    params = [nn.Parameter(torch.zeros(3)) for _ in range(hvd.size())]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), op=hvd.Adasum)
    for _ in range(2):
        optimizer.zero_grad()
        params[hvd.rank()].sum().backward()
        optimizer.step()
    for param in params:
        torch.testing.assert_close(param.data, torch.full((3,), -2.0))
    assert_same_everywhere(params)


def test_closure(make_model, batch_of, assert_same_everywhere):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), op=hvd.Adasum
    )

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, batch_of(hvd.rank()))
        loss.backward()
        return loss

    expected = loss_of(model, batch_of(hvd.rank()))
    torch.testing.assert_close(optimizer.step(closure), expected)
    assert_same_everywhere(list(model.parameters()))


def test_momentum_schedule_and_state(make_model, batch_of, assert_same_everywhere):
    """State stays local, as the steps are; after a broadcast it is the same again."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), op=hvd.Adasum)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, batch_of(hvd.rank(), step)).backward()
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 / 8)
    assert_same_everywhere(list(model.parameters()))
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert_same_everywhere([optimizer.state[param]["exp_avg"] for param in model.parameters()])
    optimizer.load_state_dict(optimizer.state_dict())


def test_channels_last(assert_same_everywhere):
    weight = torch.ones(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    param = nn.Parameter(weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=hvd.Adasum)
    generator = torch.Generator(torch.get_default_device()).manual_seed(hvd.rank())
    (param * torch.randn(4, 3, 2, 2, generator=generator)).sum().backward()
    optimizer.step()
    assert param.is_contiguous(memory_format=torch.channels_last)
    assert_same_everywhere([param.contiguous()])


def test_grad_scaler_with_infinite_gradients_on_one_rank(assert_same_everywhere):
    """That rank changes nothing and lowers its own scale; the others step."""
    param = nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=hvd.Adasum)
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=8.0)
    for spoil in (True, False):
        optimizer.zero_grad()
        loss = param.sum() * (float("inf") if spoil and hvd.rank() == 0 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert_same_everywhere([param])
    steps = 1.0 if hvd.size() == 1 else 2.0
    torch.testing.assert_close(param.data, torch.full((3,), -steps))
    assert scaler.get_scale() == (4.0 if hvd.rank() == 0 else 8.0)
