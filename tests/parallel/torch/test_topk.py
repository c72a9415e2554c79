"""Top-k on several ranks: sums, errors, order, the optimizer's state, training."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import horovod.torch as hvd
from horovod.core.process_sets import global_process_set


def exchange_of(op=hvd.Average, prescale=1.0, postscale=1.0, ratio=0.05):
    return hvd.Compression.topk(ratio).make_exchange(op, prescale, postscale, global_process_set)


def random_of(rank, *shape, seed=0):
    device = torch.get_default_device()
    return torch.randn(*shape, generator=torch.Generator(device).manual_seed(1000 * seed + rank))


def largest(tensor, count):
    """The tensor with zeros for all but its largest elements."""
    kept = tensor.flatten().abs().topk(count).indices
    result = torch.zeros_like(tensor)
    result.view(-1)[kept] = tensor.view(-1)[kept]
    return result


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_largest_elements_are_sent(op, dtype, assert_same_everywhere):
    exchange, count = exchange_of(op, 0.5, 4.0), 100
    own = [random_of(rank, 50, 40).to(dtype) for rank in range(hvd.size())]
    gradient, bias = own[hvd.rank()].clone(), own[hvd.rank()].clone()
    exchange.start(["w", "w.bias"], [gradient, bias]).finish()
    factor = 2.0 / (hvd.size() if op == hvd.Average else 1)
    error = exchange.feedback.state_dict()["errors"]["w"]
    assert error.dtype == torch.promote_types(dtype, torch.float32)
    sent = own[hvd.rank()].to(error.dtype) - error
    assert 0 < int((sent != 0).sum()) <= count
    assert torch.equal(sent + error, own[hvd.rank()].to(error.dtype))
    total = hvd.allreduce(sent, op=hvd.Sum, name="sent")
    tolerance = 1e-2 if dtype.itemsize == 2 else 1e-6
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(gradient, (factor * total).to(dtype), **close)
    torch.testing.assert_close(
        bias.double(), factor * sum(x.double() for x in own), rtol=0.02, atol=0.05
    )
    assert gradient.count_nonzero() <= count * hvd.size()
    assert_same_everywhere([gradient, bias])


def test_each_rank_sends_its_own_largest():
    exchange = exchange_of(hvd.Sum)
    own = [random_of(rank, 60, 50) for rank in range(hvd.size())]
    gradient = own[hvd.rank()].clone()
    exchange.start(["w"], [gradient]).finish()
    expected = torch.zeros(60, 50)
    for each in own:
        expected += largest(each, 150)
    assert torch.equal(gradient, expected)


def test_nothing_is_lost(assert_same_everywhere):
    exchange, arrived, given = exchange_of(hvd.Sum), torch.zeros(60, 50), torch.zeros(60, 50)
    for seed in range(10):
        gradient = random_of(hvd.rank(), 60, 50, seed=seed)
        exchange.start(["w"], [gradient]).finish()
        assert_same_everywhere([gradient])
        arrived += gradient
        given += sum(random_of(rank, 60, 50, seed=seed) for rank in range(hvd.size()))
    error = exchange.feedback.state_dict()["errors"]["w"]
    assert error.abs().max() > 0.1
    arrived += hvd.allreduce(error, op=hvd.Sum, name="error")
    torch.testing.assert_close(arrived, given, rtol=1e-4, atol=1e-4)


def test_ranks_may_batch_and_order_differently(assert_same_everywhere):
    """As the protocol of exchanges permits it: with the same members, in another order."""
    exchange = exchange_of()
    batches = [["a", "b.bias"], ["c"], ["d", "e"]]
    order = batches if hvd.rank() % 2 else batches[::-1]
    for step in range(3):
        gradients = {
            n: random_of(hvd.rank(), 40, 30, seed=step) for n in ("a", "b.bias", "c", "d", "e")
        }
        pending = {
            batch[0]: exchange.start(batch, [gradients[n] for n in batch]) for batch in order
        }
        for batch in batches:
            pending[batch[0]].finish()
        assert_same_everywhere(list(gradients.values()))


@pytest.mark.parametrize(
    ("shapes", "ratios"),
    [
        (((80, 30), (40, 30)), (0.05, 0.05)),
        # Here as many elements as expected come: the first has as many, the second sends as many.
        (((40, 30), (30, 40)), (0.05, 0.05)),
        (((40, 30), (40, 31)), (0.001, 0.001)),
        (((40, 30), (40, 30)), (0.05, 0.1)),
    ],
)
def test_ranks_that_differ_are_told_and_the_next_step_works(shapes, ratios):
    if hvd.size() == 1:
        pytest.skip("needs ranks that disagree")
    exchange = exchange_of(ratio=ratios[hvd.rank() == 0])
    with pytest.raises(hvd.HorovodInternalError, match=r"'w\.topk'.*: Mismatched .* shapes: rank"):
        exchange.start(["w"], [torch.ones(shapes[hvd.rank() == 0])]).finish()
    exchange, gradient = exchange_of(), random_of(hvd.rank(), 40, 30)
    exchange.start(["w"], [gradient]).finish()
    assert gradient.count_nonzero() >= 60


def make_optimizer(weight, bias, **options):
    return hvd.DistributedOptimizer(
        torch.optim.SGD([weight, bias], lr=1.0, momentum=0.5),
        named_parameters=[("weight", weight), ("bias", bias)],
        compression=hvd.Compression.topk(0.05),
        **options,
    )


def make_params():
    return nn.Parameter(torch.zeros(60, 50)), nn.Parameter(torch.zeros(2000))


def step(optimizer, params, seed):
    for number, param in enumerate(params):
        param.grad = random_of(hvd.rank(), *param.shape, seed=2 * seed + number)
    optimizer.step()


@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"gradient_predivide_factor": 2.0}])
def test_an_optimizer_saves_and_restores_its_errors(options, assert_same_everywhere):
    if hvd.size() == 1:
        pytest.skip("one rank sends nothing")
    params, others = make_params(), make_params()
    optimizer = make_optimizer(*params, **options)
    step(optimizer, params, 0)
    state = copy.deepcopy(optimizer.state_dict())
    assert state["compression_errors"]["rank"] == hvd.rank()
    assert list(state["compression_errors"]["errors"]) == ["weight"]
    with torch.no_grad():
        for param, other in zip(params, others, strict=True):
            other.copy_(param)
    again = make_optimizer(*others, **options)
    again.load_state_dict(state)
    for seed in (1, 2):
        step(optimizer, params, seed)
        step(again, others, seed)
        assert_same_everywhere([param.detach() for param in params])
    for param, other in zip(params, others, strict=True):
        assert torch.equal(param, other)


def test_errors_of_another_rank_do_not_count():
    if hvd.size() == 1:
        pytest.skip("needs another rank")
    params = make_params()
    optimizer = make_optimizer(*params)
    step(optimizer, params, 0)
    optimizer.load_state_dict(hvd.broadcast_object(optimizer.state_dict(), 0, "state"))
    errors = optimizer.state_dict().get("compression_errors")
    assert (errors is not None) == (hvd.rank() == 0)


def test_an_elastic_state_keeps_the_errors_of_each_rank():
    if hvd.size() == 1:
        pytest.skip("one rank sends nothing")
    params = make_params()
    optimizer = make_optimizer(*params)
    step(optimizer, params, 0)
    state = hvd.elastic.TorchState(optimizer=optimizer)
    error = optimizer.state_dict()["compression_errors"]["errors"]["weight"].clone()
    step(optimizer, params, 1)
    state.restore()
    state.sync()
    kept = optimizer.state_dict()["compression_errors"]
    assert kept["rank"] == hvd.rank()
    assert torch.equal(kept["errors"]["weight"].to(error.device), error)
    step(optimizer, params, 2)


def test_passes_and_process_sets(process_sets):
    for process_set in process_sets:
        if not process_set.included():
            continue
        params = make_params()
        optimizer = make_optimizer(*params, process_set=process_set, backward_passes_per_step=2)
        factor = random_of(hvd.rank(), 60, 50), random_of(hvd.rank(), 2000)
        for _ in range(2):
            sum((p * f).sum() for p, f in zip(params, factor, strict=True)).backward()
        optimizer.step()
        own = [2 * random_of(rank, 60, 50) for rank in process_set.ranks]
        if len(own) > 1:
            own = [largest(each, 150) for each in own]
        torch.testing.assert_close(-params[0].detach(), sum(own) / len(own))
        biases = [2 * random_of(rank, 2000) for rank in process_set.ranks]
        torch.testing.assert_close(-params[1].detach(), sum(biases) / len(biases))


def make_data(samples):
    """Points of ten classes around random centres; the same on every rank."""
    centres = random_of(1, 10, 64)
    labels = torch.arange(samples) % 10
    return centres[labels] + 1.2 * random_of(samples, samples, 64), labels


def train(compression, steps=80):
    """The loss on new data of a small network trained on this rank's share."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    inputs, labels = (x[hvd.rank() :: hvd.size()] for x in make_data(2400))
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    test_inputs, test_labels = make_data(1200)
    return F.cross_entropy(model(test_inputs), test_labels).item(), model


@pytest.mark.parametrize("ratio", [0.01, 0.1])
def test_trains_as_well_as_uncompressed(ratio, assert_same_everywhere):
    plain, _ = train(hvd.Compression.none)
    found, model = train(hvd.Compression.topk(ratio))
    assert plain < 0.2
    assert found < plain + 0.1
    assert_same_everywhere(list(model.parameters()))


def test_plain_allreduce_refuses_it():
    with pytest.raises(ValueError, match=r"DistributedOptimizer\(compression=\.\.\.\)"):
        hvd.allreduce(torch.ones(40, 30), compression=hvd.Compression.topk())
