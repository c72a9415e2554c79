"""Every optimizer class of torch.optim through DistributedOptimizer equals one process."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

import horovod.torch as hvd

CLASSES = [
    cls
    for cls in vars(torch.optim).values()
    if inspect.isclass(cls) and cls is not torch.optim.Optimizer
]
OPTIONS = {
    torch.optim.LBFGS: [
        {"max_iter": 5},
        {"max_iter": 5, "line_search_fn": "strong_wolfe", "history_size": 3},
    ],
    torch.optim.SGD: [{"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}, {"fused": True}],
    torch.optim.Adam: [{"amsgrad": True}, {"fused": True}, {"foreach": True}],
}
CASES = [(cls, options) for cls in CLASSES for options in OPTIONS.get(cls, [{}])]
IDS = [f"{cls.__name__}-{'-'.join(options)}" for cls, options in CASES]


def make_model(cls):
    """Muon takes matrices only; SparseAdam gradients of rows only."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        if cls is torch.optim.SparseAdam:
            return nn.Sequential(nn.Embedding(5, 3, sparse=True))
        bias = cls.__name__ != "Muon"  # which an older torch lacks
        return nn.Sequential(nn.Linear(4, 8, bias=bias), nn.Tanh(), nn.Linear(8, 2, bias=bias))


def loss_of(model, rank, step):
    generator = torch.Generator(torch.get_default_device()).manual_seed(100 * step + rank)
    if isinstance(model[0], nn.Embedding):
        return model(torch.randint(5, (4,), generator=generator)).pow(2).sum()
    return (model(torch.randn(3, 4, generator=generator)) - 1).pow(2).sum()


def train(model, optimizer, ranks, steps):
    """Steps on the mean loss of these ranks, by a closure as LBFGS needs it."""
    losses = []
    for step in steps:

        def closure(step=step):
            optimizer.zero_grad()
            loss = sum(loss_of(model, rank, step) for rank in ranks) / len(ranks)
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            losses.append(optimizer.step(closure).item())
        else:
            losses.append(closure().item())
            optimizer.step()
    return losses


@pytest.mark.parametrize(("cls", "options"), CASES, ids=IDS)
def test_training_equals_one_process(assert_same_everywhere, cls, options):
    model, reference = make_model(cls), make_model(cls)
    optimizer = hvd.DistributedOptimizer(
        cls(list(model.parameters()), **options), model.named_parameters()
    )
    plain = cls(list(reference.parameters()), **options)
    train(model, optimizer, [hvd.rank()], range(3))
    train(reference, plain, range(hvd.size()), range(3))
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert_same_everywhere(list(model.parameters()))


@pytest.mark.parametrize(("cls", "options"), CASES, ids=IDS)
def test_restored_on_one_rank_it_goes_on_as_before(assert_same_everywhere, cls, options):
    """State dictionary, broadcast of state and parameters, in the middle of training."""
    model = make_model(cls)
    optimizer = hvd.DistributedOptimizer(cls(list(model.parameters()), **options))
    train(model, optimizer, [hvd.rank()], range(2))
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, [hvd.rank()], range(2, 4))

    other = make_model(cls)
    restored = hvd.DistributedOptimizer(cls(list(other.parameters()), **options))
    if hvd.rank() == 0:
        other.load_state_dict(weights)
        restored.load_state_dict(state)
    hvd.broadcast_parameters(other.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(restored, root_rank=0)
    train(other, restored, [hvd.rank()], range(2, 4))
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert_same_everywhere(list(other.parameters()))


def test_lbfgs_sees_the_loss_of_all_ranks():
    param = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS([param], max_iter=1), op=hvd.Sum)

    def closure():
        optimizer.zero_grad()
        loss = (param - hvd.rank() - 1).pow(2).sum()
        loss.backward()
        return loss

    expected = sum(2.0 * (rank + 1) ** 2 for rank in range(hvd.size()))
    assert optimizer.step(closure).item() == expected
