"""DistributedOptimizer with groups: results are those without, whatever leaves together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.torch import adapter, gradient_reducer


@pytest.fixture(params=[False, True], ids=["no_spare_cores", "spare_cores"], autouse=True)
def _cores(request, monkeypatch):
    monkeypatch.setattr(adapter, "spare_cores", lambda: request.param)
    monkeypatch.setattr(gradient_reducer, "BATCH_BYTES", 100)


def loss_of(model, batch):
    return model(batch).pow(2).sum()


def mean_gradients(model, batches):
    model.zero_grad()
    (sum(loss_of(model, batch) for batch in batches) / len(batches)).backward()


def lists_of(model):
    """Two groups that cut across layers; the last bias is in none."""
    params = list(model.parameters())
    return [[params[2], params[0]], [params[1]]]


@pytest.mark.parametrize("groups", [1, 2, 3, 99, lists_of])
@pytest.mark.parametrize("predivide", [1.0, 4.0])
@pytest.mark.parametrize("passes", [1, 2])
def test_training_equals_one_process(
    make_model, batch_of, assert_same_everywhere, groups, predivide, passes
):
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        model.named_parameters(),
        backward_passes_per_step=passes,
        gradient_predivide_factor=predivide,
        groups=groups(model) if callable(groups) else groups,
    )
    plain = torch.optim.SGD(reference.parameters(), lr=0.01, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        for number in range(passes):
            loss_of(model, batch_of(hvd.rank(), passes * step + number)).backward()
        optimizer.step()
        numbers = range(passes * step, passes * step + passes)
        batches = [batch_of(rank, number) for rank in range(hvd.size()) for number in numbers]
        mean_gradients(reference, batches)
        for param in reference.parameters():
            param.grad.mul_(passes)
        plain.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert_same_everywhere(list(model.parameters()))


def test_compression_and_dtypes(assert_same_everywhere):
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    params = [nn.Parameter(torch.ones(5, dtype=dtype)) for dtype in dtypes]
    sgd = torch.optim.SGD(params, lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, compression=hvd.Compression.fp16, groups=[params])
    for _ in range(2):
        optimizer.zero_grad()
        (sum(param.sum().double() for param in params) * (hvd.rank() + 1)).backward()
        optimizer.step()
        for param in params:
            expected = torch.full((5,), (hvd.size() + 1) / 2, dtype=param.dtype)
            torch.testing.assert_close(param.grad, expected)
    assert_same_everywhere(params)


def test_gradients_missing_on_some_ranks():
    """Each rank uses its own parameter only; all are in one group."""
    params = [nn.Parameter(torch.zeros(3)) for _ in range(hvd.size())]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), groups=1)
    for _ in range(3):
        optimizer.zero_grad()
        params[hvd.rank()].sum().backward()
        optimizer.step()
    for param in params:
        torch.testing.assert_close(param.grad, torch.full((3,), 1.0 / hvd.size()))
        torch.testing.assert_close(param.data, torch.full((3,), -3.0 / hvd.size()))


def test_groups_beside_frozen_and_late_parameters():
    first, frozen, late = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, frozen], lr=1.0), groups=2)
    optimizer.add_param_group({"params": [late]})
    mean = (hvd.size() + 1) / 2
    for step in range(3):
        frozen.requires_grad_(step > 0)
        optimizer.zero_grad()
        ((first + frozen + late).sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
    torch.testing.assert_close(first.data, torch.full((2,), -3 * mean))
    torch.testing.assert_close(late.data, torch.full((2,), -3 * mean))
    torch.testing.assert_close(frozen.data, torch.full((2,), -2 * mean))


def test_order_is_that_of_rank_0():
    """Ranks that list named parameters in different orders still form the same groups."""
    shared = {name: nn.Parameter(torch.zeros(2)) for name in "abcd"}
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([shared[name] for name in "abcd"], lr=1.0),
        list(shared.items())[:: 1 if hvd.rank() % 2 else -1],
        groups=3,
    )
    for _ in range(2):
        optimizer.zero_grad()
        (sum(param.sum() for param in shared.values()) * (hvd.rank() + 1)).backward()
        optimizer.step()
    for param in shared.values():
        torch.testing.assert_close(param.grad, torch.full((2,), (hvd.size() + 1) / 2))


def test_several_optimizers_in_flight(make_model, batch_of):
    models = [make_model(), make_model()]
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01),
            [(f"{number}.{name}", param) for name, param in model.named_parameters()],
            groups=number,
        )
        for number, model in enumerate(models)
    ]
    reference = make_model()
    plain = torch.optim.SGD(reference.parameters(), lr=0.01)
    for step in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sum(loss_of(model, batch_of(hvd.rank(), step)) for model in models).backward()
        for optimizer in optimizers:
            optimizer.step()
        mean_gradients(reference, [batch_of(rank, step) for rank in range(hvd.size())])
        plain.step()
    for model in models:
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_load_state_dict_in_flight(make_model, batch_of, assert_same_everywhere):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), groups=2)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, batch_of(hvd.rank(), step)).backward()
        optimizer.step()
    optimizer.zero_grad()
    loss_of(model, batch_of(hvd.rank())).backward()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    loss_of(model, batch_of(hvd.rank())).backward()
    optimizer.step()
    assert_same_everywhere(list(model.parameters()))
