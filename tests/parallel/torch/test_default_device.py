"""Tensors of the CPU where the program has chosen another device for new tensors.

On "meta" a tensor has no numbers: what the library makes for itself there would fail.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    with torch.device("meta"):
        yield


def linear() -> nn.Module:
    return nn.Linear(64, 48, device="cpu")


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor, steps: int = 3
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def batch() -> Tensor:
    return torch.full((4, 64), 1.0 + hvd.rank(), device="cpu")


@pytest.mark.parametrize(
    "compression",
    [
        hvd.Compression.none,
        hvd.Compression.fp16,
        hvd.Compression.int8,
        hvd.Compression.powersgd(rank=2),
        hvd.Compression.topk(0.1),
    ],
    ids=lambda compression: str(getattr(compression, "title", compression)),
)
def test_training(compression, assert_same_everywhere):
    model = linear()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        sgd, named_parameters=model.named_parameters(), compression=compression
    )
    train(model, optimizer, batch())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, batch())
    assert_same_everywhere(list(model.parameters()))


@pytest.mark.parametrize("make", [hvd.LocalSGD, hvd.DiLoCo])
def test_local_steps(make, assert_same_everywhere):
    model = linear()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = make(torch.optim.SGD(model.parameters(), lr=0.01), sync_every=2)
    train(model, optimizer, batch(), 4)
    assert_same_everywhere(list(model.parameters()))


def test_a_sharded_optimizer(assert_same_everywhere):
    model = linear()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), sharded=True)
    train(model, optimizer, batch())
    optimizer.state_dict()
    assert_same_everywhere(list(model.parameters()))


def test_sparse_gradients(assert_same_everywhere):
    embedding = nn.Embedding(10, 3, sparse=True, device="cpu")
    hvd.broadcast_parameters(embedding.state_dict(), root_rank=0)
    sgd = torch.optim.SGD(embedding.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=embedding.named_parameters())
    train(embedding, optimizer, torch.tensor([hvd.rank(), 5], device="cpu"))
    assert_same_everywhere(list(embedding.parameters()))


def test_sync_batch_norm(assert_same_everywhere):
    layer = hvd.SyncBatchNorm(3).to_empty(device="cpu")
    layer.reset_parameters()
    x = torch.arange(12.0, device="cpu").view(4, 3) * (1 + hvd.rank())
    x.requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad is not None
    assert_same_everywhere([layer.running_mean, layer.running_var])


def test_collectives_and_their_gradients():
    x = torch.ones(2, 3, device="cpu", requires_grad=True)
    hvd.allgather(x).sum().backward()
    hvd.alltoall(x[:0]).sum().backward()
    assert hvd.broadcast_object({"rank": hvd.rank(), "x": x.detach()})["rank"] == 0
    assert hvd.allgather(x[:0].detach()).shape == (0, 3)
    sparse = torch.eye(3, device="cpu").to_sparse()
    summed = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)()
    assert summed.to_dense().sum() == 3 * hvd.size()


def test_an_elastic_state():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, batch(), 1)
    empty = torch.empty(0, 3, device="cpu")
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, empty=empty, step=1)
    state.sync()
    state.restore()
    assert state.empty.device.type == "cpu"


def test_a_balanced_sampler():
    sampler = hvd.BalancedSampler(range(60), batch_size=6)
    for indices in sampler:
        sampler.weight(len(indices))
