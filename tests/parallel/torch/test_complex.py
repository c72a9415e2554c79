"""Complex numbers, which travel as pairs of real ones."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd

DTYPES = [torch.complex64, torch.complex128]


def own(dtype, rank=None, count=5):
    """Numbers whose sums have no rounding."""
    rank = hvd.rank() if rank is None else rank
    return torch.arange(count).to(dtype) * complex(rank + 1, -2 * rank)


def total(dtype, count=5):
    return sum(own(dtype, rank, count) for rank in range(hvd.size()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions(dtype):
    found = [
        hvd.allreduce(own(dtype), op=hvd.Sum),
        hvd.allreduce_(own(dtype), op=hvd.Sum),
        hvd.synchronize(hvd.allreduce_async(own(dtype), op=hvd.Sum, prescale_factor=2.0)) / 2,
        *hvd.grouped_allreduce([own(dtype), torch.ones(2)], op=hvd.Sum)[:1],
        hvd.allgather(hvd.reducescatter(own(dtype), op=hvd.Sum)),
        hvd.allreduce(own(dtype), op=hvd.Average) * hvd.size(),
    ]
    for result in found[:-1]:
        assert result.dtype == dtype
        assert torch.equal(result, total(dtype))
    torch.testing.assert_close(found[-1], total(dtype))
    assert hvd.allreduce(own(dtype, count=2)[1], op=hvd.Sum).shape == ()


def test_adasum_of_equal_tensors_is_the_tensor():
    torch.testing.assert_close(
        hvd.allreduce(own(torch.complex64, 1), op=hvd.Adasum), own(torch.complex64, 1)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exchanges(dtype):
    size, last = hvd.size(), hvd.size() - 1
    rows = torch.cat([own(dtype, rank)[: rank + 1] for rank in range(size)])
    assert torch.equal(hvd.allgather(own(dtype)[: hvd.rank() + 1]), rows)
    assert torch.equal(hvd.broadcast(own(dtype), last), own(dtype, last))
    columns = torch.stack([own(dtype, rank, size)[hvd.rank()] for rank in range(size)])
    assert torch.equal(hvd.alltoall(own(dtype, count=size)), columns)


def test_sparse_tensors():
    mine = own(torch.complex64).reshape(5, 1).to_sparse()
    found = hvd.sparse_allreduce_async(mine.conj(), "sparse", hvd.Average)().to_dense()
    torch.testing.assert_close(found.flatten(), total(torch.complex64).conj() / hvd.size())


def test_what_complex_numbers_do_not_have_is_refused():
    with pytest.raises(ValueError, match=r"allreduce 'z': complex numbers have no Max; they have"):
        hvd.allreduce(own(torch.complex64), op=hvd.Max, name="z")
    with pytest.raises(ValueError, match=r"conjugate of its memory; pass tensor.resolve_conj\(\)"):
        hvd.allreduce(own(torch.complex64).conj())
    with pytest.raises(ValueError, match="does not support scalar tensors"):
        hvd.alltoall(own(torch.complex64)[1])


@pytest.mark.parametrize("call", [hvd.allreduce, hvd.allgather, lambda z: hvd.broadcast(z, 0)])
def test_gradients_are_those_of_pairs(call):
    def gradient(view, call):
        tensor = view(own(torch.complex64)).requires_grad_()
        result = call(tensor)
        pairs = torch.view_as_real(result) if result.is_complex() else result
        (pairs * torch.arange(1.0, 1 + pairs.numel()).view_as(pairs)).sum().backward()
        return tensor.grad

    found = gradient(torch.Tensor.clone, call)
    expected = gradient(lambda z: torch.view_as_real(z).clone(), call)
    assert torch.equal(torch.view_as_real(found.resolve_conj()), expected)


class Model(torch.nn.Module):
    """``w`` has a gradient that is a lazy conjugate, and ``large`` is a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator(torch.get_default_device()).manual_seed(3)
        options = {"dtype": torch.complex64, "generator": generator}
        self.w = torch.nn.Parameter(torch.randn(3, **options))
        self.large = torch.nn.Parameter(torch.randn(1 << 15, 3, **options))
        self.v = torch.nn.Parameter(torch.ones(3))

    def forward(self, z):
        return (
            (self.w.conj() * z).real.sum() + (self.large * z).abs().mean() + (self.v * z).real.sum()
        )


def data(step, rank):
    return (torch.arange(1, 4) * (step + 1)).to(torch.complex64) * complex(1, rank)


OPTIONS = {
    "plain": {},
    "passes": {"backward_passes_per_step": 2},
    "sharded": {"sharded": True},
    "groups": {"groups": 1},
    "fp16": {"compression": hvd.Compression.fp16},
    "topk": {"compression": hvd.Compression.topk(0.5)},
    "powersgd": {"compression": hvd.Compression.powersgd(rank=1)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_optimizer_trains_as_one_process(options):
    model, alone = Model(), Model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model.named_parameters(), **options
    )
    single = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    passes = options.get("backward_passes_per_step", 1)
    for step in range(3):
        for number in range(passes):
            model(data(step + number, hvd.rank())).backward()
            for rank in range(hvd.size()):
                (alone(data(step + number, rank)) / hvd.size()).backward()
        for each in (optimizer, single):
            each.step()
            each.zero_grad()
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if "compression" in options else {}
    torch.testing.assert_close(model.w, alone.w)
    torch.testing.assert_close(model.large, alone.large)
    torch.testing.assert_close(model.v, alone.v, **tolerance)
