"""PowerSGD on one rank, with a stand-in for the engine: what travels, what is remembered."""

from __future__ import annotations

import copy

import pytest
import torch

from horovod.core import world
from horovod.core.operations import Average, Max, Min, Product
from horovod.core.process_sets import global_process_set
from horovod.errors import HorovodInternalError
from horovod.torch import adapter
from horovod.torch.compression import Compression


class OneRank:
    """An engine whose world has one rank: reducing is scaling, at the time of the wait."""

    def __init__(self):
        self.sent = {}
        self.count = 0
        self.waiting = {}
        self.failing = None

    def submit(self, tensors, names, op, prescale, postscale, *, intent, process_set, link_format):
        assert process_set is global_process_set
        self.sent.update({name: tensor.shape for name, tensor in zip(names, tensors, strict=True)})
        self.count += 1
        self.waiting[self.count] = (tensors, prescale * postscale)
        return self.count

    def synchronize(self, handle):
        tensors, factor = self.waiting.pop(handle)
        if self.failing is not None:
            raise self.failing
        for tensor in tensors:
            tensor.mul_(int(factor) if factor == int(factor) else factor)


@pytest.fixture
def engine(monkeypatch):
    engine = OneRank()
    monkeypatch.setattr(adapter, "allreduce_batch_async_", engine.submit)
    monkeypatch.setattr(adapter, "synchronize", engine.synchronize)
    return engine


def exchange_of(powersgd, op=Average, prescale=1.0, postscale=1.0):
    return powersgd.make_exchange(op, prescale, postscale, global_process_set)


def random(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def low_rank(rows, columns, rank, seed=0):
    return random(rows, rank, seed=seed) @ random(rank, columns, seed=seed + 1)


def reduce(exchange, **gradients):
    exchange.start(list(gradients), list(gradients.values())).finish()


@pytest.mark.parametrize("op", [Min, Max, Product, 99])
def test_other_ops_are_refused(op):
    with pytest.raises(ValueError, match="op=Average or op=Sum only"):
        exchange_of(Compression.powersgd(), op)


@pytest.mark.parametrize(
    "options", [{"rank": 0}, {"start_after": -1}, {"min_compression_rate": 0.0}]
)
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Compression.powersgd(**options)


def test_single_operations_are_refused():
    with pytest.raises(ValueError, match="DistributedOptimizer"):
        Compression.powersgd().compress(torch.ones(9, 9))


def test_only_large_matrices_are_compressed(engine):
    gradients = {
        "matrix": random(40, 30),
        "kernel": random(32, 8, 3, 3),
        "small": random(8, 7),
        "bias": random(100),
        "scalar": random(1)[0],
        "counts": torch.arange(10000).view(100, 100),
        "empty": torch.zeros(0, 100),
    }
    want = {name: gradient.clone() for name, gradient in gradients.items()}
    reduce(exchange_of(Compression.powersgd(rank=2)), **gradients)
    assert engine.sent == {
        "matrix.powersgd_p": (40, 2),
        "matrix.powersgd_q": (30, 2),
        "kernel.powersgd_p": (32, 2),
        "kernel.powersgd_q": (72, 2),
        **{name: want[name].shape for name in ("small", "bias", "scalar", "counts", "empty")},
    }
    for name in ("small", "bias", "scalar", "counts", "empty"):
        assert torch.equal(gradients[name], want[name])


def test_compression_rate_decides(engine):
    reduce(exchange_of(Compression.powersgd(rank=1, min_compression_rate=4)), a=random(8, 8))
    reduce(exchange_of(Compression.powersgd(rank=1, min_compression_rate=4.1)), b=random(8, 8))
    assert set(engine.sent) == {"a.powersgd_p", "a.powersgd_q", "b"}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_exact_when_the_rank_suffices(dtype):
    gradient = low_rank(40, 30, 2).to(dtype)
    want = gradient.clone()
    reduce(exchange_of(Compression.powersgd(rank=3)), w=gradient)
    bound = 1e-5 if dtype in (torch.float32, torch.float64) else 5e-2
    torch.testing.assert_close(gradient, want, rtol=bound, atol=bound)


@pytest.mark.usefixtures("engine")
def test_scale_factors():
    gradient = low_rank(40, 30, 2)
    bias = random(30)
    want, want_bias = gradient / 2, bias / 2
    reduce(exchange_of(Compression.powersgd(), Average, 0.25, 2.0), w=gradient, b=bias)
    torch.testing.assert_close(gradient, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(bias, want_bias)


@pytest.mark.usefixtures("engine")
def test_any_memory_order():
    gradient = random(16, 8, 3, 3).to(memory_format=torch.channels_last)
    plain = gradient.clone(memory_format=torch.contiguous_format)
    for tensor in (gradient, plain):
        reduce(exchange_of(Compression.powersgd(rank=2)), w=tensor)
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(gradient, plain)


def errors_of(powersgd):
    return {name: entry["error"] for name, entry in powersgd.state_dict().items()}


@pytest.mark.usefixtures("engine")
def test_what_is_left_out_is_remembered():
    powersgd = Compression.powersgd(rank=2)
    exchange = exchange_of(powersgd)
    gradient, total = random(40, 30), torch.zeros(40, 30)
    for step in range(1, 5):
        part = gradient.clone()
        reduce(exchange, w=part)
        total += part
        error = errors_of(powersgd)["w"]
        assert error.norm() > 1
        torch.testing.assert_close(total + error, step * gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("engine")
def test_warm_start_finds_the_best_approximation():
    """Steps on the same matrix are steps of subspace iteration, if errors do not interfere."""
    powersgd = Compression.powersgd(rank=2)
    gradient = random(40, 30)
    u, s, vh = torch.linalg.svd(gradient)
    best = (gradient - u[:, :2] * s[:2] @ vh[:2]).norm()
    for _ in range(200):
        part = gradient.clone()
        powersgd.load_state_dict(
            {
                name: {**entry, "error": torch.zeros_like(gradient)}
                for name, entry in powersgd.state_dict().items()
            }
        )
        reduce(exchange_of(powersgd), w=part)
    assert (gradient - part).norm() < 1.001 * best


@pytest.mark.usefixtures("engine")
def test_zero_gradients_do_not_end_it():
    powersgd = Compression.powersgd(rank=2)
    zero = torch.zeros(40, 30)
    reduce(exchange_of(powersgd), w=zero)
    assert torch.equal(zero, torch.zeros(40, 30))
    gradient = low_rank(40, 30, 2)
    want = gradient.clone()
    reduce(exchange_of(powersgd), w=gradient)
    torch.testing.assert_close(gradient, want, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("scale", [1e-18, 1e18])
def test_extreme_scales(scale):
    powersgd = Compression.powersgd(rank=2)
    for seed in range(3):
        gradient = scale * low_rank(40, 30, 2, seed)
        want = gradient.clone()
        reduce(exchange_of(powersgd), w=gradient)
        torch.testing.assert_close(gradient / scale, want / scale, rtol=1e-3, atol=1e-3)


def snapshot(powersgd):
    return copy.deepcopy(powersgd.state_dict())


def assert_same_memory(powersgd, before):
    after = powersgd.state_dict()
    for key in ("q", "error"):
        assert torch.equal(after["w"][key], before["w"][key])


def test_failed_step_leaves_the_memory_alone(engine):
    powersgd = Compression.powersgd(rank=2)
    exchange = exchange_of(powersgd)
    reduce(exchange, w=random(40, 30))
    before = snapshot(powersgd)
    pending = exchange.start(["w"], [random(40, 30, seed=1)])
    other = exchange.start(["b"], [random(5)])
    engine.failing = HorovodInternalError("rank 1 died")
    with pytest.raises(HorovodInternalError, match="rank 1 died"):
        pending.finish()
    other.finish()
    assert not engine.waiting
    assert powersgd.state_dict()["w"]["steps"] == 1
    assert_same_memory(powersgd, before)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("where", ["w", "b"])
def test_step_with_infinite_gradients_leaves_the_memory_alone(bad, where):
    """A gradient scaler sees it in the result, leaves the step out, and the next one is fine."""
    powersgd = Compression.powersgd(rank=2)
    exchange = exchange_of(powersgd)
    reduce(exchange, w=random(40, 30), b=random(5))
    before = snapshot(powersgd)
    gradients = {"w": random(40, 30, seed=1), "b": random(5)}
    gradients[where].view(-1)[3] = bad
    reduce(exchange, **gradients)
    assert not gradients[where].isfinite().all()
    assert_same_memory(powersgd, before)


def test_start_after(engine):
    powersgd = Compression.powersgd(rank=2, start_after=2)
    for step in range(3):
        gradient = random(40, 30)
        reduce(exchange_of(powersgd), w=gradient)
        assert ("w.powersgd_p" in engine.sent) == (step == 2)


@pytest.mark.usefixtures("engine")
def test_state_round_trip():
    first = Compression.powersgd(rank=2)
    reduce(exchange_of(first), w=random(40, 30))
    second = Compression.powersgd(rank=2)
    second.load_state_dict(snapshot(first))
    results = []
    for powersgd in (first, second):
        results.append(random(40, 30, seed=1))
        reduce(exchange_of(powersgd), w=results[-1])
    assert torch.equal(*results)
    assert_same_memory(first, second.state_dict())


@pytest.mark.usefixtures("engine")
def test_memory_ends_with_the_world(monkeypatch):
    powersgd = Compression.powersgd(rank=2)
    first, again = random(40, 30), random(40, 30)
    reduce(exchange_of(powersgd), w=first)
    monkeypatch.setattr(world, "generation", lambda: 77)
    reduce(exchange_of(powersgd), w=again)
    assert torch.equal(first, again)
    assert powersgd.state_dict()["w"]["steps"] == 1


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("other", [random(30, 40), random(44, 30), random(40, 30).double()])
def test_another_matrix_under_the_same_name(other):
    powersgd = Compression.powersgd(rank=2)
    reduce(exchange_of(powersgd), w=random(40, 30))
    with pytest.raises(ValueError, match="memory of 'w' is for rank 2"):
        reduce(exchange_of(powersgd), w=other)


@pytest.mark.usefixtures("engine")
def test_sparse_gradients_are_refused():
    with pytest.raises(ValueError, match="'w' is of layout"):
        reduce(exchange_of(Compression.powersgd()), w=torch.eye(40).to_sparse())


@pytest.mark.usefixtures("engine")
def test_first_guess_depends_on_name_and_seed_only():
    def result(name, others=(), seed=0):
        gradients = {other: random(40, 30, seed=3) for other in others}
        gradients[name] = random(40, 30)
        reduce(exchange_of(Compression.powersgd(rank=2, seed=seed)), **gradients)
        return gradients[name]

    assert torch.equal(result("w"), result("w", others=["a", "b"]))
    assert not torch.equal(result("w"), result("v"))
    assert not torch.equal(result("w"), result("w", seed=1))
