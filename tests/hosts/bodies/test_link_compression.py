"""Allreduces in low-bit formats between hosts: numbers, refusals, error feedback."""

from __future__ import annotations

import zlib

import pytest
import torch

import horovod.torch as hvd
from horovod.errors import MismatchError
from horovod.torch.compression import Compression

FORMATS = [Compression.int8, Compression.fp8, Compression.mxfp8, Compression.int4]
# Of the largest element of a block, for a sum of two coded parts and its own coding.
MOST_ERROR = dict(zip(FORMATS, (0.02, 0.15, 0.15, 0.3), strict=True))

pytestmark = pytest.mark.parametrize("compression", FORMATS, ids=["int8", "fp8", "mxfp8", "int4"])


def values(count: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * count + rank)
    return torch.randn(count, generator=generator).to(dtype)


def checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def check_alike(tensor: torch.Tensor, name: str) -> None:
    """All ranks have the same bits."""
    sums = hvd.allgather_object(checksum(tensor), name=name)
    assert sums == [checksum(tensor)] * hvd.size()


@pytest.mark.parametrize("count", [1024, 5000, 300_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_are_close_and_the_same_everywhere(compression, count, dtype):
    inputs = [values(count, rank, dtype).float() for rank in range(hvd.size())]
    exact = torch.stack(inputs).mean(0)
    mine = inputs[hvd.rank()].to(dtype)
    reduced = hvd.allreduce(mine, compression=compression)
    error = (reduced.float() - exact).abs().max()
    assert error <= MOST_ERROR[compression] * hvd.size() ** 0.5 * exact.abs().max()
    assert hvd.local_size() == hvd.size() or not torch.equal(reduced.float(), exact)
    check_alike(reduced, "close")
    small, again = hvd.grouped_allreduce([torch.ones(77), mine], compression=compression)
    assert torch.equal(again, reduced)  # wherever it is in a bucket
    assert torch.equal(small, torch.ones(77))


def test_small_tensors_are_exact(compression):
    mine = values(1023, hvd.rank())
    exact = hvd.allreduce(mine, name="small")
    assert torch.equal(hvd.allreduce(mine, name="small coded", compression=compression), exact)


def test_layers_are_exact_by_name(compression):
    mine = values(5000, hvd.rank())
    exact = hvd.allreduce(mine, name="plain")
    is_one_host = hvd.local_size() == hvd.size()
    for name in ("layer.bias", "LayerNorm.weight", "tok_embeddings.weight"):
        assert torch.equal(hvd.allreduce(mine, name=name, compression=compression), exact)
    coded = hvd.allreduce(mine, name="layer.weight", compression=compression)
    assert torch.equal(coded, exact) == is_one_host


@pytest.mark.parametrize("groups", [None, 1])
def test_an_optimizer_sends_embeddings_exactly(compression, groups):
    names = ["embed.weight", "out.weight", "norm.weight"]
    params = [torch.nn.Parameter(torch.zeros(3000)) for _ in names]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params, lr=1.0),
        named_parameters=zip(names, params, strict=True),
        compression=compression,
        groups=groups,
    )
    mine = values(3000, hvd.rank())
    exact = hvd.allreduce(mine, name="exact")
    for param in params:
        param.grad = mine.clone()
    optimizer.step()
    is_one_host = hvd.local_size() == hvd.size()
    are_exact = [torch.equal(param.detach(), -exact) for param in params]
    assert are_exact == [True, is_one_host, True]
    kept = optimizer.state_dict().get("compression_errors", {}).get("errors", {})
    assert list(kept) == ([] if is_one_host else ["allreduce.out.weight"])


def test_what_cannot_be_coded_is_refused(compression):
    name = compression.link_format.name.lower()
    with pytest.raises(ValueError, match=f"compression={name} needs float32, .* found int64"):
        hvd.allreduce(torch.ones(5, dtype=torch.int64), op=hvd.Sum, compression=compression)
    with pytest.raises(ValueError, match=f"compression={name} needs op Sum or Average, found Max"):
        hvd.allreduce(torch.ones(5), op=hvd.Max, compression=compression)
    with pytest.raises(ValueError, match=f"compression={name} needs an allreduce"):
        hvd.reducescatter(torch.ones(5), compression=compression)


def test_ranks_that_differ_are_told(compression):
    mine = values(4096, hvd.rank())
    chosen = compression if hvd.rank() == 0 else Compression.none
    name = compression.link_format.name.lower()
    with pytest.raises(MismatchError, match="Mismatched compression") as caught:
        hvd.allreduce(mine, name=f"differ {name}", compression=chosen)
    assert f"sent {name}" in str(caught.value)
    assert "sent none" in str(caught.value)
    check_alike(hvd.allreduce(mine, name="after", compression=compression), "after")


def make_optimizer(compression, weight: torch.Tensor) -> torch.optim.Optimizer:
    return hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0),
        named_parameters=[("weight", weight)],
        compression=compression,
    )


def test_error_feedback_loses_nothing(compression):
    """With the same gradient in each step the sum of all updates stays a step's error away."""
    count, steps = 4096, 20
    weight = torch.nn.Parameter(torch.zeros(count))
    optimizer = make_optimizer(compression, weight)
    inputs = [values(count, rank) for rank in range(hvd.size())]
    exact = torch.stack(inputs).mean(0)
    for _ in range(steps):
        weight.grad = None
        (weight * inputs[hvd.rank()]).sum().backward()
        optimizer.step()
    error = (-weight.detach() - steps * exact).abs().max()
    assert error <= 2 * MOST_ERROR[compression] * hvd.size() ** 0.5 * exact.abs().max()
    check_alike(weight.detach(), "weight")


def test_errors_are_saved_with_the_optimizer(compression):
    weight = torch.nn.Parameter(torch.zeros(2048))
    optimizer = make_optimizer(compression, weight)
    weight.grad = values(2048, hvd.rank())
    optimizer.step()
    state = optimizer.state_dict()
    assert ("compression_errors" in state) == (hvd.local_size() < hvd.size())
    other = make_optimizer(compression, torch.nn.Parameter(torch.zeros(2048)))
    other.load_state_dict(state)
    kept = other.state_dict().get("compression_errors", {}).get("errors", {})
    for name, error in state.get("compression_errors", {}).get("errors", {}).items():
        assert torch.equal(kept[name], error)
        state["compression_errors"]["rank"] = hvd.rank() + 1
    other.load_state_dict(state)  # of another rank: not taken
    assert "compression_errors" not in other.state_dict()
