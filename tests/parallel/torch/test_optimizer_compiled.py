"""DistributedOptimizer over torch.compile'd models, and beside models of odd memory order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd


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
