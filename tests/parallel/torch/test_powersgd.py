"""PowerSGD on several ranks: averages, errors, order, training."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import horovod.torch as hvd
from horovod.core.process_sets import global_process_set


def exchange_of(op=hvd.Average, prescale=1.0, postscale=1.0, **options):
    powersgd = hvd.Compression.powersgd(**options)
    return powersgd.make_exchange(op, prescale, postscale, global_process_set)


def random(*shape, seed):
    return torch.randn(
        *shape, generator=torch.Generator(torch.get_default_device()).manual_seed(seed)
    )


def random_of(rank, *shape, seed=0):
    return random(*shape, seed=1000 * seed + rank)


def mean_of(*shape, seed=0):
    return sum(random_of(r, *shape, seed=seed) for r in range(hvd.size())) / hvd.size()


def deficient(rank, seed=0):
    """Each rank's matrix is of rank 1; float64, as a random Q may be nearly dependent."""
    return (
        random_of(rank, 40, 1, seed=seed).double() @ random_of(rank, 1, 30, seed=seed + 1).double()
    )


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_exact_for_rank_deficient_gradients(op, assert_same_everywhere):
    exchange = exchange_of(op, 0.5, 4.0, rank=4)
    for seed in range(3):
        gradient, bias = deficient(hvd.rank(), seed), random_of(hvd.rank(), 30)
        exchange.start(["w", "b"], [gradient, bias]).finish()
        factor = 2.0 * (1 if op == hvd.Average else hvd.size())
        want = factor * sum(deficient(r, seed) for r in range(hvd.size())) / hvd.size()
        torch.testing.assert_close(gradient, want, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(bias, factor * mean_of(30))
        assert_same_everywhere([gradient, bias])


def test_mean_over_steps_converges_to_the_true_mean(assert_same_everywhere):
    exchange = exchange_of(rank=2)
    want, total = mean_of(24, 20), torch.zeros(24, 20)
    distances = {}
    for step in range(1, 201):
        gradient = random_of(hvd.rank(), 24, 20)
        exchange.start(["w"], [gradient]).finish()
        total += gradient
        distances[step] = ((total / step - want).norm() / want.norm()).item()
    assert_same_everywhere([total])
    assert distances[1] > 0.5
    assert distances[200] < 0.05
    assert distances[200] < distances[50] / 3


def test_ranks_may_batch_and_order_differently(assert_same_everywhere):
    shapes = {"a": (40, 30), "b": (7,), "c": (30, 20), "d": (50, 50)}
    orders = (["abcd"], ["d", "cb", "a"], ["ba", "dc"], ["c", "d", "a", "b"])
    exchange, plain = exchange_of(rank=2), exchange_of(rank=2)
    for step in range(3):
        gradients = {n: random_of(hvd.rank(), *shapes[n], seed=step) for n in shapes}
        twins = {n: gradient.clone() for n, gradient in gradients.items()}
        pending = [
            exchange.start(list(batch), [gradients[n] for n in batch])
            for batch in orders[hvd.rank() % len(orders)]
        ]
        for batch in pending:
            batch.finish()
        assert_same_everywhere(list(gradients.values()))
        plain.start(list(twins), list(twins.values())).finish()
        for n, gradient in gradients.items():
            assert torch.equal(gradient, twins[n])


def test_mismatch_is_raised_everywhere_and_the_next_step_works():
    if hvd.size() == 1:
        pytest.skip("needs ranks that disagree")
    exchange = exchange_of(rank=2)
    wrong = torch.ones(44 if hvd.rank() == 0 else 40, 30)
    with pytest.raises(hvd.HorovodInternalError, match=r"w\.powersgd_p"):
        exchange.start(["w"], [wrong]).finish()
    gradient = deficient(hvd.rank())
    exchange.start(["w"], [gradient]).finish()
    rank = min(2, hvd.size())
    assert torch.linalg.matrix_rank(gradient, rtol=1e-4) == rank


def test_a_rank_that_had_joined_starts_to_compress_with_the_others(assert_same_everywhere):
    """It has counted fewer steps; if it went on with these, all would wait for each other."""
    weight = nn.Parameter(torch.zeros(40, 30))
    powersgd = hvd.Compression.powersgd(rank=2, start_after=5)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), [("w", weight)], compression=powersgd
    )

    def step(number):
        optimizer.zero_grad()
        (weight * random_of(hvd.rank(), 40, 30, seed=number)).sum().backward()
        optimizer.step()

    for number in range(1 if hvd.rank() == 0 else 3):
        step(number)
    last = hvd.join()
    hvd.broadcast_parameters([("w", weight)], root_rank=last)
    step(3)
    made = 2 if hvd.size() == 1 else 4
    assert powersgd.state_dict().get("w", {"steps": made})["steps"] == made
    for number in range(4, 8):
        step(number)
        assert_same_everywhere([weight])
    if hvd.size() > 1:
        assert powersgd.state_dict()["w"]["error"].abs().max() > 0


def make_data(samples):
    """Points of ten classes around random centres; the same on every rank."""
    centres = random(10, 64, seed=1)
    labels = torch.arange(samples) % 10
    return centres[labels] + 1.2 * random(samples, 64, seed=samples), labels


def train(exchange, steps=60):
    """Accuracy of a small network trained on this rank's share of the data, per step averaged."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = make_data(2000)
    mine = slice(hvd.rank(), None, hvd.size())
    inputs, labels = inputs[mine], labels[mine]
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        named = {name: p.grad for name, p in model.named_parameters()}
        exchange.start(list(named), list(named.values())).finish()
        optimizer.step()
    test_inputs, test_labels = make_data(1000)
    accuracy = (model(test_inputs).argmax(1) == test_labels).float().mean().item()
    return accuracy, model


def test_trains_as_well_as_uncompressed(assert_same_everywhere):
    plain, _ = train(exchange_of(start_after=10**9))
    compressed, model = train(exchange_of(rank=1))
    assert plain > 0.9
    assert compressed > plain - 0.01
    assert_same_everywhere(list(model.parameters()))


def test_plain_allreduce_refuses_it():
    with pytest.raises(ValueError, match=r"DistributedOptimizer\(compression=\.\.\.\)"):
        hvd.allreduce(torch.ones(40, 30), compression=hvd.Compression.powersgd())
