"""What the collectives must return, computed in one process with NumPy from all ranks' inputs.

Bit by bit, except for Adasum: ranks are summed in rank order, 16-bit floats in float32 with one
rounding at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

import horovod.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]

_COMBINE = {hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}


def values(dtype: torch.dtype, shape: Sequence[int], *seed: int) -> Tensor:
    """A tensor that every rank can make: small numbers, so that integers do not overflow."""
    random = np.random.default_rng([len(shape), *seed])
    if dtype == torch.bool:
        return torch.from_numpy(np.asarray(random.random(shape) < 0.5))
    if dtype.is_floating_point:
        return torch.from_numpy(np.asarray(random.uniform(-2, 2, shape))).to(dtype)
    low = 0 if dtype == torch.uint8 else -3
    return torch.from_numpy(np.asarray(random.integers(low, 4, shape))).to(dtype)


def ops_of(dtype: torch.dtype) -> list[int]:
    """The reduce operations that an allreduce of this dtype knows."""
    if dtype == torch.bool:
        return [hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
    plain = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
    return [*plain, hvd.Adasum] if dtype.is_floating_point else plain


def bits(tensor: Tensor) -> np.ndarray:
    """The tensor's memory as an array; NumPy has no bfloat16."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def reduced(
    op: int, inputs: Sequence[Tensor], prescale: float = 1.0, postscale: float = 1.0
) -> Tensor:
    """The result of reducing the ranks' ``inputs``, in rank order; not for Adasum."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        stacked = torch.stack(list(inputs))
        return stacked.any(0) if op in (hvd.Sum, hvd.Max) else stacked.all(0)
    if dtype.is_floating_point:
        return _reduced_floats(op, inputs, prescale, postscale)
    scaled = [_scaled(tensor.numpy(), prescale) for tensor in inputs]
    total = scaled[0]
    for other in scaled[1:]:
        total = _COMBINE.get(op, np.add)(total, other)
    factor = postscale / len(inputs) if op == hvd.Average else postscale
    return torch.from_numpy(np.asarray(_scaled(total, factor)))


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    """Truncated toward zero; what the dtype cannot hold becomes its nearest end."""
    if factor == 1:
        return array
    ends = np.iinfo(array.dtype)
    return np.trunc(array * np.float64(factor)).clip(ends.min, ends.max).astype(array.dtype)


def _reduced_floats(op: int, inputs: Sequence[Tensor], prescale: float, postscale: float) -> Tensor:
    dtype = inputs[0].dtype
    wide = np.float64 if dtype == torch.float64 else np.float32
    arrays = [tensor.double().numpy().astype(wide) * wide(prescale) for tensor in inputs]
    total = arrays[0]
    for other in arrays[1:]:
        total = _COMBINE.get(op, np.add)(total, other)
    total = total * wide(postscale / len(inputs) if op == hvd.Average else postscale)
    return torch.from_numpy(np.asarray(total)).to(dtype)


def adasum(inputs: Sequence[Tensor]) -> Tensor:
    """Adasum in float64 along its tree: ranks past a power of two fold in, then neighbours meet."""
    vectors = [tensor.double().numpy() for tensor in inputs]
    power = 1 << (len(vectors).bit_length() - 1)
    for extra in range(power, len(vectors)):
        vectors[extra - power] = _combined(vectors[extra - power], vectors[extra])
    vectors = vectors[:power]
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_combined(left, right) for left, right in pairs]
    return torch.from_numpy(np.asarray(vectors[0]))


def _combined(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    # Not np.vdot: BLAS threads of all ranks would fight for the cores.
    dot = np.sum(left * right)

    def factor(vector: np.ndarray) -> float:
        square = np.sum(vector * vector)
        return 1.0 if square == 0 else float(1 - dot / (2 * square))

    return factor(left) * left + factor(right) * right


def assert_adasum(result: Tensor, expected: Tensor) -> None:
    """``result`` is this Adasum, rounded once to its dtype."""
    wide = torch.float64 if result.dtype == torch.float64 else torch.float32
    # Vectors that nearly cancel cost digits: twice of their dot products, once of their weights.
    slack = 1e-10 if wide == torch.float64 else 64 * torch.finfo(wide).eps
    unit = torch.finfo(result.dtype).eps
    torch.testing.assert_close(result.double(), expected, rtol=unit + slack, atol=slack)


def rows_of_part(rows: int, size: int, set_rank: int) -> tuple[int, int]:
    """Which rows a reducescatter gives to a rank: from, to."""
    least, more = divmod(rows, size)
    begin = set_rank * least + min(set_rank, more)
    return begin, begin + least + (set_rank < more)


def exchanged(
    inputs: Sequence[Tensor], splits: Sequence[Sequence[int]], set_rank: int
) -> tuple[Tensor, list[int]]:
    """What an alltoall gives to a rank: its rows, and how many came from whom."""
    parts = []
    for tensor, counts in zip(inputs, splits, strict=True):
        begin = sum(counts[:set_rank])
        parts.append(tensor[begin : begin + counts[set_rank]])
    return torch.cat(parts), [counts[set_rank] for counts in splits]
