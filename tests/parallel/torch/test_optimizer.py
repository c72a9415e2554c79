"""DistributedOptimizer: training on all ranks equals training in one process on all data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.torch import adapter, gradient_reducer


@pytest.fixture(params=[False, True], ids=["one_batch", "many_batches"])
def batches(request, monkeypatch):
    """Reductions at the end of backward, and during it in small batches."""
    monkeypatch.setattr(adapter, "spare_cores", lambda: request.param)
    monkeypatch.setattr(gradient_reducer, "BATCH_BYTES", 100)


def loss_of(model, batch):
    return model(batch).pow(2).sum()


def mean_gradients(model, batches):
    """The gradient of the mean over ``batches``, computed in this process alone."""
    model.zero_grad()
    (sum(loss_of(model, batch) for batch in batches) / len(batches)).backward()


def assert_models_close(model, reference, **tolerance):
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("predivide", [1.0, 4.0])
def test_training_equals_one_process(
    make_model, batch_of, assert_same_everywhere, named, predivide
):
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        model.named_parameters() if named else None,
        gradient_predivide_factor=predivide,
    )
    plain = torch.optim.SGD(reference.parameters(), lr=0.01, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, batch_of(hvd.rank(), step)).backward()
        optimizer.step()
        mean_gradients(reference, [batch_of(rank, step) for rank in range(hvd.size())])
        plain.step()
    assert_models_close(model, reference)
    assert_same_everywhere(list(model.parameters()))


@pytest.mark.parametrize(
    ("op", "reduce"),
    [
        (hvd.Sum, lambda stacked: stacked.sum(0)),
        (hvd.Average, lambda stacked: stacked.mean(0)),
        (hvd.Min, lambda stacked: stacked.amin(0)),
        (hvd.Max, lambda stacked: stacked.amax(0)),
    ],
)
def test_ops(op, reduce):
    param = nn.Parameter(torch.zeros(5))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), op=op)
    rows = torch.randn(
        hvd.size(), 5, generator=torch.Generator(torch.get_default_device()).manual_seed(3)
    )
    (param * rows[hvd.rank()]).sum().backward()
    optimizer.step()
    torch.testing.assert_close(param.grad, reduce(rows))
    torch.testing.assert_close(param.data, -reduce(rows))


@pytest.mark.usefixtures("batches")
def test_accumulation_adds_up_before_the_average(make_model, batch_of):
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), backward_passes_per_step=3
    )
    for step in range(3):
        loss_of(model, batch_of(hvd.rank(), step)).backward()
    optimizer.step()
    mean_gradients(
        reference, [batch_of(rank, step) for rank in range(hvd.size()) for step in range(3)]
    )
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, 3 * theirs.grad)


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("groups", [None, 2])
def test_zero_grad_drops_what_some_passes_have_added_up(make_model, batch_of, groups):
    """A rank leaves out what it has, and the step has as many passes as ever."""
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), backward_passes_per_step=2, groups=groups
    )
    for step in range(3):
        optimizer.zero_grad()
        if hvd.rank() == 0:
            loss_of(model, batch_of(7, step)).backward()
            optimizer.zero_grad()
        for _ in range(2):
            loss_of(model, batch_of(hvd.rank(), step)).backward()
        optimizer.synchronize()
        mean_gradients(reference, [batch_of(rank, step) for rank in range(hvd.size())])
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, 2 * theirs.grad)


def test_changed_number_of_passes(make_model, batch_of, assert_same_everywhere):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    optimizer.set_backward_passes_per_step(2)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, batch_of(hvd.rank())).backward()
        loss_of(model, batch_of(hvd.rank())).backward()
        optimizer.step()
    assert_same_everywhere([param.grad for param in model.parameters()])


@pytest.mark.usefixtures("batches")
def test_fp16_compression(make_model, batch_of, assert_same_everywhere):
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), compression=hvd.Compression.fp16
    )
    loss_of(model, batch_of(hvd.rank())).backward()
    optimizer.step()
    mean_gradients(reference, [batch_of(rank) for rank in range(hvd.size())])
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert ours.grad.dtype == torch.float32
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=4e-3, atol=4e-3)
    assert_same_everywhere(list(model.parameters()))


def test_clipping_between_synchronize_and_step(make_model, batch_of):
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    loss_of(model, batch_of(hvd.rank())).backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    with optimizer.skip_synchronize():
        optimizer.step()
    mean_gradients(reference, [batch_of(rank) for rank in range(hvd.size())])
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(reference.parameters(), 0.5))
    plain.step()
    assert_models_close(model, reference)


def test_closure_sees_reduced_gradients(make_model, batch_of):
    model, reference = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, batch_of(hvd.rank()))
        loss.backward()
        return loss

    for _ in range(2):
        expected = loss_of(model, batch_of(hvd.rank()))
        torch.testing.assert_close(optimizer.step(closure), expected)
        mean_gradients(reference, [batch_of(rank) for rank in range(hvd.size())])
        plain.step()
    assert_models_close(model, reference)


@pytest.mark.parametrize("wrap_first", [True, False])
def test_learning_rate_schedule(make_model, batch_of, assert_same_everywhere, wrap_first):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if wrap_first:
        optimizer = hvd.DistributedOptimizer(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    if not wrap_first:
        optimizer = hvd.DistributedOptimizer(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, batch_of(hvd.rank())).backward()
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert_same_everywhere(list(model.parameters()))


def test_step_hooks_run_once_on_reduced_gradients(make_model, batch_of, assert_same_everywhere):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append([param.grad.clone() for param in model.parameters()])
    )
    loss_of(model, batch_of(hvd.rank())).backward()
    optimizer.step()
    assert len(seen) == 1
    assert_same_everywhere(seen[0])


def test_state_dict_round_trip(make_model, batch_of, assert_same_everywhere):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    loss_of(model, batch_of(hvd.rank())).backward()
    optimizer.step()
    other = make_model()
    restored = hvd.DistributedOptimizer(torch.optim.Adam(other.parameters()))
    loss_of(other, batch_of(hvd.rank(), 1)).backward()  # in flight, given up by loading
    restored.load_state_dict(optimizer.state_dict())
    restored.zero_grad()
    loss_of(other, batch_of(hvd.rank())).backward()
    restored.step()
    assert restored.state_dict()["state"][0]["step"] == 2
    assert_same_everywhere(list(other.parameters()))


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_what_programs_look_up(make_model, batch_of, op):
    model = make_model()
    compression = hvd.Compression.fp16
    factor = 2.0 if op == hvd.Average else 1.0
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        compression=compression,
        op=op,
        gradient_predivide_factor=factor,
    )
    assert (optimizer.op, optimizer.gradient_predivide_factor) == (op, factor)
    assert optimizer.process_set is hvd.global_process_set
    assert optimizer._compression is compression
    assert not optimizer._handles
    reduces = op == hvd.Average and hvd.size() > 1
    delays = optimizer._allreduce_delay
    assert set(delays) == (set(model.parameters()) if reduces else set())
    assert set(delays.values()) <= {1}
    loss_of(model, batch_of(hvd.rank(), 0)).backward()
    assert bool(optimizer._handles) == reduces
    optimizer.step()
    assert not optimizer._handles
