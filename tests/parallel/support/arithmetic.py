"""Expected results of reductions, computed in one process with NumPy from all ranks' inputs.

Exact to the bit, except Adasum: ranks are summed in rank order, 16-bit floats in float32 with one
rounding at the end. Used for every framework; ``reference`` wraps it for torch tensors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

import horovod.numpy as hvd

OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
LOGIC = [hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
_COMBINE = {hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}


# Between hosts sums are in another order than the ranks, and 16-bit values are rounded on the way.
# With these values this changes nothing: sums and products of four of them are exact.
_IS_COARSE = os.environ.get("HOROVOD_TEST_COARSE") == "1"


def values(dtype: DTypeLike, shape: Sequence[int], *seed: int) -> np.ndarray:
    """An array that every rank can make: small numbers, so that integers do not overflow."""
    random = np.random.default_rng([len(shape), *seed])
    dtype = np.dtype(dtype)
    if _IS_COARSE and is_float(dtype):
        return np.asarray(random.integers(-4, 5, shape) / 2).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(random.random(shape) < 0.5)
    if dtype.kind in "iu":
        return np.asarray(random.integers(0 if dtype.kind == "u" else -3, 4, shape)).astype(dtype)
    return np.asarray(random.uniform(-2, 2, shape)).astype(dtype)


def is_float(dtype: DTypeLike) -> bool:
    """Whether it is a float, including bfloat16, which NumPy does not know."""
    return np.dtype(dtype).kind not in "iub"


def ops_of(dtype: DTypeLike) -> list[int]:
    """The reduce operations that allreduce supports for this dtype."""
    if np.dtype(dtype).kind == "b":
        return LOGIC
    return [*OPS, hvd.Adasum] if is_float(dtype) else OPS


def reduced(
    op: int, inputs: Sequence[np.ndarray], prescale: float = 1.0, postscale: float = 1.0
) -> np.ndarray:
    """The result of reducing the ranks' ``inputs``, in rank order; not for Adasum."""
    dtype = inputs[0].dtype
    if dtype.kind == "b":
        is_or = op in (hvd.Sum, hvd.Max)
        return np.asarray((np.any if is_or else np.all)(inputs, axis=0))
    factor = postscale / len(inputs) if op == hvd.Average else postscale
    if dtype.kind in "iu":
        scaled = [_truncated(array, prescale) for array in inputs]
        return np.asarray(_truncated(_combined(op, scaled), factor))
    wide = np.dtype(np.float64 if dtype == np.float64 else np.float32).type
    total = _combined(op, [array.astype(wide) * wide(prescale) for array in inputs])
    return np.asarray(total * wide(factor)).astype(dtype)


def _combined(op: int, arrays: Sequence[np.ndarray]) -> np.ndarray:
    total = arrays[0]
    for other in arrays[1:]:
        total = _COMBINE.get(op, np.add)(total, other)
    return np.asarray(total)


def _truncated(array: np.ndarray, factor: float) -> np.ndarray:
    """Scaled and rounded toward zero; clamped to the range of the dtype."""
    if factor == 1:
        return array
    ends = np.iinfo(array.dtype)
    return np.trunc(array * np.float64(factor)).clip(ends.min, ends.max).astype(array.dtype)


def adasum(inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Adasum in float64 along its tree: first ranks above a power of two, then neighbours."""
    vectors = [array.astype(np.float64) for array in inputs]
    power = 1 << (len(vectors).bit_length() - 1)
    for extra in range(power, len(vectors)):
        vectors[extra - power] = _pair(vectors[extra - power], vectors[extra])
    vectors = vectors[:power]
    while len(vectors) > 1:
        vectors = [_pair(*pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    return np.asarray(vectors[0])


def _pair(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    # Not np.vdot: the BLAS threads of all ranks would compete for the cores.
    dot = np.sum(left * right)

    def factor(vector: np.ndarray) -> float:
        square = np.sum(vector * vector)
        return 1.0 if square == 0 else float(1 - dot / (2 * square))

    return factor(left) * left + factor(right) * right


def assert_adasum(result: np.ndarray, expected: np.ndarray, unit: float) -> None:
    """``result`` is this Adasum, rounded once to its dtype; ``unit``: the dtype's step at 1."""
    # Vectors that nearly cancel lose digits: twice in their dot products, once in their weights.
    slack = 1e-10 if result.dtype == np.float64 else 64 * np.finfo(np.float32).eps
    if _IS_COARSE:  # the part of a host is rounded before it is sent to other hosts
        unit, slack = 2 * unit, slack + 4 * unit
    np.testing.assert_allclose(result.astype("f8"), expected, rtol=unit + slack, atol=slack)


def rows_of_part(rows: int, size: int, set_rank: int) -> slice:
    """The rows that a reducescatter gives to a rank."""
    least, more = divmod(rows, size)
    begin = set_rank * least + min(set_rank, more)
    return slice(begin, begin + least + (set_rank < more))


def exchanged(
    inputs: Sequence[np.ndarray], splits: Sequence[Sequence[int]], set_rank: int
) -> tuple[np.ndarray, list[int]]:
    """The result of an alltoall on a rank: its rows, and the number from each rank."""
    parts = []
    for array, counts in zip(inputs, splits, strict=True):
        begin = sum(counts[:set_rank])
        parts.append(array[begin : begin + counts[set_rank]])
    return np.concatenate(parts), [counts[set_rank] for counts in splits]
