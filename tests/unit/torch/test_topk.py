"""Top-k on one rank, with a stand-in for the engine: what travels, what is remembered."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest
import torch

import horovod.torch as hvd
from horovod.core.process_sets import global_process_set
from horovod.errors import HorovodInternalError
from horovod.torch import adapter
from horovod.torch.compression import Compression
from horovod.torch.topk import largest, packed, unpacked


class OneRank:
    """Gathering and reducing as a world of one rank does it, at the time of the wait."""

    def __init__(self):
        self.sent = {}
        self.waiting = {}
        self.failing = None
        self.refusing = None
        self.alter = lambda values, indices: (values, indices)

    def allreduce(self, tensors, names, op, prescale, postscale, **_options):
        self.sent.update(dict(zip(names, tensors, strict=True)))
        return self._start(tensors)

    def allgather(self, tensors, name, process_set):
        assert process_set is global_process_set
        if self.refusing is not None:
            raise self.refusing
        count = len(tensors) // 3
        values, indices, forms = (tensors[i * count : (i + 1) * count] for i in range(3))
        assert not any(form.numel() for form in forms)
        found = [unpacked(*pair) for pair in zip(indices, map(elements_of, forms), strict=True)]
        self.sent[name] = [tensor.clone() for tensor in (*values, *found)]
        pairs = [self.alter(*pair) for pair in zip(values, indices, strict=True)]
        return self._start([*(v for v, _ in pairs), *(i for _, i in pairs), *forms])

    def synchronize(self, handle):
        results = self.waiting.pop(handle)
        if self.failing is not None:
            raise self.failing
        return results

    def _start(self, results):
        handle = max(self.waiting, default=0) + 1
        self.waiting[handle] = results
        return handle


def elements_of(form):
    """Of the gradient; a form begins with 0 and the number of elements that are sent."""
    return math.prod(form.shape[2:])


@pytest.fixture(autouse=True)
def engine(monkeypatch) -> Iterator[OneRank]:
    engine = OneRank()
    monkeypatch.setattr(adapter, "allreduce_batch_async_", engine.allreduce)
    monkeypatch.setattr(adapter, "grouped_allgather_async", engine.allgather)
    monkeypatch.setattr(adapter, "synchronize", engine.synchronize)
    hvd.init()
    yield engine
    hvd.shutdown()


def exchange_of(ratio=0.01, op=hvd.Average, prescale=1.0, postscale=1.0, half=False):
    compression = Compression.topk(ratio, half=half)
    return compression.make_exchange(op, prescale, postscale, global_process_set)


def random(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def reduce(exchange, **gradients):
    exchange.start(list(gradients), list(gradients.values())).finish()


def error_of(exchange):
    return exchange.feedback.state_dict()["errors"]["w"]


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product, hvd.Adasum])
def test_other_ops_are_refused(op):
    with pytest.raises(ValueError, match="topk reduces with op=Average or op=Sum only"):
        exchange_of(op=op)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("ratio", [0.0001, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("half", [False, True])
def test_what_is_sent_and_kept_is_the_gradient_exactly(engine, dtype, ratio, seed, half):
    """Also with many equal elements, and with errors from before."""
    exchange = exchange_of(ratio, half=half)
    before = torch.zeros(60, 50)
    for step in range(3):
        gradient = (4 * random(60, 50, seed=10 * seed + step)).round().div(4 if step else 1)
        gradient = gradient.to(dtype)
        given = gradient.clone().to(before.dtype) + before
        reduce(exchange, w=gradient)
        values, indices = engine.sent["w.topk"]
        assert len(values) == len(set(indices.tolist())) == max(1, round(3000 * ratio))
        error = error_of(exchange)
        sent = torch.zeros_like(error)
        assert values.dtype == (torch.bfloat16 if half else error.dtype)
        sent.view(-1)[indices] = values.to(sent.dtype)
        assert torch.equal(sent + error, given.to(error.dtype))
        both = sent.bool() & error.bool()
        assert (error[both].abs() <= sent[both].abs() / 256).all()
        assert half or not both.any()
        assert torch.cat([error[~both].abs(), torch.zeros(1)]).max() <= values.abs().min()
        assert torch.equal(gradient, sent.to(dtype))
        before = error.clone()


@pytest.mark.parametrize("count", [1, 127, 128, 1000, 20000, 50000])
@pytest.mark.parametrize("kind", ["random", "equal", "zero", "misleading", "nan"])
def test_a_sample_changes_nothing(count, kind):
    magnitudes = random(50000).abs()
    if kind == "equal":
        magnitudes = magnitudes.round()
    if kind == "zero":
        magnitudes = torch.zeros(50000)
    if kind == "misleading":  # whatever the stride is, only what it meets is large
        stride = max(1, min(61, count // 64))
        magnitudes[::stride] += 100
    if kind == "nan":
        magnitudes[[7, 40000]] = float("nan")
    found = largest(magnitudes, count)
    assert len(set(found.tolist())) == count
    expected = magnitudes.topk(count).values
    assert torch.equal(
        magnitudes[found].sort(descending=True).values.nan_to_num(-1), expected.nan_to_num(-1)
    )


@pytest.mark.parametrize("elements", [1, 3000, 65535, 65536, 65537, 200_000])
@pytest.mark.parametrize("ratio", [0.001, 0.3, 1.0])
def test_indices_travel_in_16_bits(elements, ratio):
    count = max(1, round(ratio * elements))
    order = torch.randperm(elements, generator=torch.Generator().manual_seed(0))
    indices = order[:count].sort().values
    parts = packed(indices, elements)
    assert parts.dtype == torch.int16
    assert len(parts) <= count + 2 * (elements // 65536 + 1)
    # At an odd place, as those of another rank may be.
    assert torch.equal(unpacked(torch.cat([parts[:1], parts])[1:], elements), indices)


def test_what_travels_as_it_is(engine):
    gradients = {
        "layer.bias": random(2000),
        "norm.weight": random(2000),
        "embedding": random(100, 30),
        "small": random(1023),
        "counts": torch.arange(10000),
        "empty": torch.zeros(0, 100),
    }
    want = {name: gradient.clone() for name, gradient in gradients.items()}
    reduce(exchange_of(), **gradients, w=random(2000))
    assert set(engine.sent) == {*gradients, "w.topk"}
    assert [len(part) for part in engine.sent["w.topk"]] == [20, 20]
    for name, gradient in gradients.items():
        assert torch.equal(gradient, want[name])


def test_scale_factors(engine):
    exchange, gradient = exchange_of(1.0, hvd.Sum, 0.25, 2.0), random(40, 30)
    want = gradient / 2
    reduce(exchange, w=gradient)
    torch.testing.assert_close(gradient, want)
    assert not error_of(exchange).any()


def test_any_memory_order():
    gradient = random(16, 8, 3, 3).to(memory_format=torch.channels_last)
    plain = gradient.clone(memory_format=torch.contiguous_format)
    exchanges = [exchange_of(0.1) for _ in range(2)]
    for exchange, tensor in zip(exchanges, (gradient, plain), strict=True):
        reduce(exchange, w=tensor)
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(gradient, plain)
    assert torch.equal(*map(error_of, exchanges))


def test_failed_step_leaves_the_errors_alone(engine):
    exchange = exchange_of()
    reduce(exchange, w=random(40, 30))
    before = error_of(exchange).clone()
    pending = exchange.start(["w"], [random(40, 30, seed=1)])
    other = exchange.start(["v.bias"], [random(5)])
    engine.failing = HorovodInternalError("rank 1 died")
    with pytest.raises(HorovodInternalError, match="rank 1 died"):
        pending.finish()
    other.finish()
    assert not engine.waiting
    assert torch.equal(error_of(exchange), before)


def test_a_refused_step_is_forgotten(engine):
    """As in an elastic job, whose next world goes on with the same optimizer."""
    exchange, want = exchange_of(), random(40, 30, seed=1)
    reduce(exchange_of(), w=want)
    engine.refusing = HorovodInternalError("rank 1 died")
    for _ in range(2):
        with pytest.raises(HorovodInternalError, match="rank 1 died"):
            exchange.start(["w"], [random(40, 30)])
    engine.refusing = None
    gradient = random(40, 30, seed=1)
    reduce(exchange, w=gradient)
    assert torch.equal(gradient, want)


def test_what_was_sent_of_a_refused_step_is_waited_for(engine, monkeypatch):
    def refuse(*_args, **_options):
        raise ValueError("this dtype cannot be reduced")

    monkeypatch.setattr(adapter, "allreduce_batch_async_", refuse)
    with pytest.raises(ValueError, match="this dtype"):
        exchange_of().start(["w", "bias"], [random(40, 30), random(5)])
    assert not engine.waiting


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("where", ["w", "bias"])
def test_step_with_infinite_gradients_leaves_the_errors_alone(bad, where):
    """A gradient scaler sees it in the result, leaves the step out, and the next one is fine."""
    exchange = exchange_of()
    reduce(exchange, w=random(40, 30), bias=random(5))
    before = error_of(exchange).clone()
    gradients = {"w": random(40, 30, seed=1), "bias": random(5)}
    gradients[where].view(-1)[3] = bad
    reduce(exchange, **gradients)
    assert not gradients[where].isfinite().all()
    assert torch.equal(error_of(exchange), before)


@pytest.mark.parametrize(
    ("alter", "text"),
    [
        # The first two numbers for indices are the count of those below 65,536.
        (
            lambda v, i: (v, i - torch.tensor([0, 0, *(12 * [1200])], dtype=torch.int16)),
            "that are not of 1200 elements",
        ),
        (
            lambda v, i: (v, i + torch.tensor([0, 0, *(12 * [1200])], dtype=torch.int16)),
            "that are not of 1200 elements",
        ),
        (
            lambda v, i: (v, i + torch.tensor([1, *(13 * [0])], dtype=torch.int16)),
            "that are not of 1200 elements",
        ),
        (
            lambda v, i: (v, i - torch.tensor([0, 1, *(12 * [0])], dtype=torch.int16)),
            "that are not of 1200 elements",
        ),
        (lambda v, i: (v[:-1], i), "11 elements with 14 numbers .* 'w', expected 12 with 14 of"),
        (lambda v, i: (v, i[:-1]), "12 elements with 13 numbers .* 'w', expected 12 with 14 of"),
        (lambda v, i: (v[:0], i[:0]), "0 elements with 0 numbers"),
    ],
)
def test_what_does_not_fit_is_refused(engine, alter, text):
    engine.alter = alter
    exchange = exchange_of()
    with pytest.raises(HorovodInternalError, match=text):
        reduce(exchange, w=random(40, 30))
    assert not error_of(exchange).any()


def test_state_round_trip():
    first, second = exchange_of(), exchange_of()
    reduce(first, w=random(40, 30))
    second.feedback.load_state_dict(copy.deepcopy(first.feedback.state_dict()))
    results = [random(40, 30, seed=1) for _ in range(2)]
    for exchange, gradient in zip((first, second), results, strict=True):
        reduce(exchange, w=gradient)
    assert torch.equal(*results)


def test_errors_of_another_rank_or_model_do_not_count():
    first, gradient = exchange_of(), random(40, 30)
    reduce(first, w=gradient)
    for state in (
        {**first.feedback.state_dict(), "rank": 1},
        {"rank": 0, "errors": {"w": torch.ones(30, 40)}},
    ):
        second, again = exchange_of(), random(40, 30)
        second.feedback.load_state_dict(state)
        reduce(second, w=again)
        assert torch.equal(again, gradient)


def test_sparse_gradients_are_refused():
    with pytest.raises(ValueError, match=r"Compression\.topk reduces dense .* 'w' is of layout"):
        reduce(exchange_of(), w=torch.eye(40).to_sparse())


def test_half_is_true_or_false():
    with pytest.raises(ValueError, match="topk: half must be True or False, found 1"):
        Compression.topk(half=1)


def sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(40, 30))], lr=0.1)


def test_who_cannot_use_it_says_so():
    topk = Compression.topk()
    with pytest.raises(ValueError, match="compression=TopK is a class; call it"):
        hvd.DistributedOptimizer(sgd(), compression=Compression.topk)
    with pytest.raises(ValueError, match="compression=TopK, which needs whole gradients"):
        hvd.DistributedOptimizer(sgd(), compression=topk, sharded=True)
    with pytest.raises(ValueError, match="LocalSGD: compression=TopK is a class; call it"):
        hvd.LocalSGD(sgd(), sync_every=2, compression=Compression.topk)
