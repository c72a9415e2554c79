"""Optimizers over compiled models, in compiled steps, and beside models of odd memory order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd

# Of the compiler itself, wherever a tensor crosses a split.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def loss_of(model, batch):
    return model(batch).pow(2).sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_compiled_model(make_model, batch_of, assert_same_everywhere, backend, groups):
    model, reference = make_model(), make_model()
    compiled = torch.compile(model, backend=backend)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(compiled.parameters(), lr=0.01), model.named_parameters(), groups=groups
    )
    plain = torch.optim.SGD(reference.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(compiled, batch_of(hvd.rank(), step)).backward()
        optimizer.step()
        plain.zero_grad()
        batches = [batch_of(rank, step) for rank in range(hvd.size())]
        (sum(loss_of(reference, batch) for batch in batches) / hvd.size()).backward()
        plain.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert_same_everywhere(list(model.parameters()))


def distributed(optimizer, **options):
    return hvd.DistributedOptimizer(optimizer, **options)


MAKERS = {
    "plain": distributed,
    "groups": lambda optimizer: distributed(optimizer, groups=1),
    "topk": lambda optimizer: distributed(optimizer, compression=hvd.Compression.topk(0.5)),
    "sharded": lambda optimizer: distributed(optimizer, sharded=True),
    "adasum": lambda optimizer: distributed(optimizer, op=hvd.Adasum),
    "local": lambda optimizer: hvd.LocalSGD(optimizer, sync_every=2, fragments=2, overlap=1),
    "diloco": lambda optimizer: hvd.DiLoCo(optimizer, sync_every=2),
}


def plain_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def clipped_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with optimizer.skip_synchronize():
        optimizer.step()
    return norm


def closure_step(model, optimizer, batch):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    return optimizer.step(closure).detach()


def scaled_step(model, optimizer, batch, scaler):
    optimizer.zero_grad()
    scaler.scale(loss_of(model, batch)).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale()


@pytest.fixture
def assert_same_when_compiled(make_model, batch_of):
    """Checks that four steps are the same compiled and as they are."""

    def trained(make, step, batches, needs_scaler):
        model = make_model()
        optimizer = make(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        last = (torch.amp.GradScaler("cpu", init_scale=8.0),) if needs_scaler else ()
        results = [step(model, optimizer, batch, *last) for batch in batches]
        return [*results, *model.parameters()]

    def check(make, step, backend, batches=None, needs_scaler=False):
        torch._dynamo.reset()
        batches = batches or [batch_of(hvd.rank(), number) for number in range(4)]
        expected = trained(make, step, batches, needs_scaler)
        found = trained(make, torch.compile(step, backend=backend), batches, needs_scaler)
        torch.testing.assert_close(found, expected)

    return check


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_compiled_step(assert_same_when_compiled, make, backend):
    assert_same_when_compiled(make, plain_step, backend)


@pytest.mark.parametrize("step", [clipped_step, closure_step])
@pytest.mark.parametrize("kind", ["plain", "sharded", "local"])
def test_compiled_step_of_another_form(assert_same_when_compiled, kind, step):
    assert_same_when_compiled(MAKERS[kind], step, "aot_eager")


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="this torch has none for CPUs")
@pytest.mark.parametrize("kind", ["plain", "sharded", "adasum", "local"])
def test_compiled_step_with_a_scaler(assert_same_when_compiled, batch_of, kind):
    batches = [batch_of(hvd.rank(), number) for number in range(4)]
    batches[2] *= float("inf") if hvd.rank() == 0 else 1.0
    assert_same_when_compiled(MAKERS[kind], scaled_step, "aot_eager", batches, needs_scaler=True)


def test_step_with_compiled_autograd(assert_same_when_compiled):
    if not hasattr(torch._dynamo.config, "compiled_autograd"):
        pytest.skip("this torch has none")
    with torch._dynamo.config.patch(compiled_autograd=True):
        assert_same_when_compiled(distributed, plain_step, "eager")


@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16])
def test_channels_last(assert_same_everywhere, groups, compression):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    model = model.to(memory_format=torch.channels_last)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), compression=compression, groups=groups
    )
    for step in range(2):
        optimizer.zero_grad()
        generator = torch.Generator(torch.get_default_device()).manual_seed(10 * step + hvd.rank())
        images = torch.randn(2, 3, 5, 5, generator=generator)
        loss_of(model, images.contiguous(memory_format=torch.channels_last)).backward()
        optimizer.step()
    assert not model[0].weight.grad.is_contiguous()
    assert_same_everywhere([param.contiguous() for param in model.parameters()])
