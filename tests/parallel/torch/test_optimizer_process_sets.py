"""DistributedOptimizer on process sets: members reduce among themselves, others step alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.torch import adapter


@pytest.fixture(params=[False, True], ids=["no_spare_cores", "spare_cores"], autouse=True)
def _cores(request, monkeypatch):
    monkeypatch.setattr(adapter, "spare_cores", lambda: request.param)


@pytest.fixture(scope="module", autouse=True)
def sets():
    """All ranks but the last, and the last two; they overlap from three ranks on."""
    size = hvd.size()
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    chosen = {"front": list(range(size - 1)), "back": list(range(size))[-2:]}
    made = {}
    for name, ranks in chosen.items():
        is_new = 0 < len(ranks) < size
        made[name] = hvd.add_process_set(ranks) if is_new else hvd.global_process_set
    yield made
    for process_set in made.values():
        hvd.remove_process_set(process_set)


def mean_of(ranks):
    return sum(rank + 1.0 for rank in ranks) / len(ranks)


def expected_scale(process_set):
    return mean_of(process_set.ranks if process_set.included() else [hvd.rank()])


OPTIONS = [
    {},
    {"groups": 2},
    {"gradient_predivide_factor": 2.0},
    {"compression": hvd.Compression.fp16},
    {"backward_passes_per_step": 2},
]


@pytest.mark.parametrize("which", ["front", "back"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_average_of_members(sets, which, options):
    params = [nn.Parameter(torch.zeros(size)) for size in (3, 4, 5)]
    sgd = torch.optim.SGD(params, lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, process_set=sets[which], **options)
    passes = options.get("backward_passes_per_step", 1)
    scale = passes * expected_scale(sets[which])
    for step in range(3):
        optimizer.zero_grad()
        for _ in range(passes):
            (sum(param.sum() for param in params) * (hvd.rank() + 1)).backward()
        optimizer.step()
        for param in params:
            torch.testing.assert_close(param.grad, torch.full_like(param, scale))
            torch.testing.assert_close(param.data, torch.full_like(param, -scale * (step + 1)))


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(sets, as_dense):
    """Members average; the first member alone has a gradient in the second step."""
    front = sets["front"]
    embedding = nn.Embedding(4, 2, sparse=True)
    sgd = torch.optim.SGD(embedding.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, sparse_as_dense=as_dense, process_set=front)
    (embedding(torch.tensor([1])).sum() * (hvd.rank() + 1)).backward()
    optimizer.step()
    scale = expected_scale(front)
    torch.testing.assert_close(embedding.weight.grad.to_dense()[1], torch.full((2,), scale))
    optimizer.zero_grad()
    if not front.included():
        return
    if front.rank() == 0:
        embedding(torch.tensor([2])).sum().backward()
    optimizer.step()
    share = torch.full((2,), 1 / front.size())
    torch.testing.assert_close(embedding.weight.grad.to_dense()[2], share)


def test_one_model_over_overlapping_sets(sets):
    """Parts of a model reduced in different sets at the same time, under equal names."""
    parts = {name: nn.Parameter(torch.zeros(1000)) for name in ("front", "back", "all")}
    process_sets = {**sets, "all": hvd.global_process_set}
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD([param], lr=1.0), [(name, param)], process_set=process_sets[name]
        )
        for name, param in parts.items()
    ]
    order = list(parts.values())[:: 1 if hvd.rank() % 2 else -1]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for param in order:
            (param.sum() * (hvd.rank() + 1)).backward()
        for optimizer in optimizers:
            optimizer.step()
    for name, param in parts.items():
        expected = torch.full((1000,), expected_scale(process_sets[name]))
        torch.testing.assert_close(param.grad, expected)


def test_outside_nothing_is_reduced(sets):
    back = sets["back"]
    param = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), process_set=back)
    if back.included():
        optimizer.step()
        return
    assert not param._post_accumulate_grad_hooks
    for _ in range(2):
        param.sum().backward()
        optimizer.zero_grad()  # nothing is in flight
    param.sum().backward()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert torch.equal(param.data, torch.full((2,), -1.0))


def test_unregistered_set():
    if hvd.size() == 1:
        pytest.skip("a world of one does not look at the set")
    param = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="not registered"):
        hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), process_set=hvd.ProcessSet([0]))


def test_adasum(sets):
    """Members combine their steps; ranks outside keep their own."""
    front = sets["front"]
    param = nn.Parameter(torch.ones(6))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([param], lr=0.5), op=hvd.Adasum, process_set=front
    )
    own = -0.5 * torch.arange(6.0) * (hvd.rank() + 1)
    expected = 1 + own
    if front.included():
        expected = 1 + hvd.allreduce(own, op=hvd.Adasum, process_set=front)
    (param * torch.arange(6.0)).sum().mul(hvd.rank() + 1).backward()
    optimizer.step()
    torch.testing.assert_close(param.data, expected)
