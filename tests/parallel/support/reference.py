"""``arithmetic`` for torch tensors: expected results of collectives, from all ranks' inputs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import arithmetic
import numpy as np
import torch
from torch import Tensor

import horovod.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
OVER_NCCL = os.environ.get("HOROVOD_TEST_OVER_NCCL") == "1"  # tensors on GPUs


def values(dtype: torch.dtype, shape: Sequence[int], *seed: int) -> Tensor:
    """A tensor that every rank can make: small numbers, so that integers do not overflow."""
    made = "f8" if dtype.is_floating_point else str(dtype).removeprefix("torch.")
    return _tensor(arithmetic.values(made, shape, *seed)).to(dtype)


def _tensor(array: np.ndarray) -> Tensor:
    """On the device that the tests are about."""
    return torch.from_numpy(array).to(torch.get_default_device())


def ops_of(dtype: torch.dtype) -> list[int]:
    """The reduce operations that allreduce supports for this dtype."""
    if dtype == torch.bool:
        return arithmetic.LOGIC
    return [*arithmetic.OPS, hvd.Adasum] if dtype.is_floating_point else arithmetic.OPS


def bits(tensor: Tensor) -> np.ndarray:
    """The tensor's memory as an array; NumPy has no bfloat16."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy(
        force=True
    )


def is_reduced(result: Tensor, expected: Tensor, process_set: hvd.ProcessSet) -> bool:
    """Bit for bit; but NCCL, which ranks alone use too, rounds 16-bit floats at each step."""
    is_short = result.dtype in (torch.float16, torch.bfloat16)
    if not (result.is_cuda and is_short and (OVER_NCCL or process_set.size() == 1)):
        return torch.equal(result, expected)
    kind = torch.finfo(result.dtype)
    wide = expected.double()
    bound = 2 * (kind.eps * wide.abs() + kind.smallest_normal)
    return bool(((result.double() - wide).abs() <= bound).all())


def reduced(
    op: int, inputs: Sequence[Tensor], prescale: float = 1.0, postscale: float = 1.0
) -> Tensor:
    """The result of reducing the ranks' ``inputs``, in rank order; not for Adasum."""
    dtype = inputs[0].dtype
    if dtype.is_floating_point and dtype != torch.float64:
        inputs = [tensor.float() for tensor in inputs]
    arrays = [tensor.numpy(force=True) for tensor in inputs]
    return _tensor(arithmetic.reduced(op, arrays, prescale, postscale)).to(dtype)


def adasum(inputs: Sequence[Tensor]) -> Tensor:
    """Adasum in float64 along its tree."""
    return _tensor(arithmetic.adasum([tensor.double().numpy(force=True) for tensor in inputs]))


def assert_adasum(result: Tensor, expected: Tensor) -> None:
    """``result`` is this Adasum, rounded once to its dtype."""
    wide = result.double() if result.dtype == torch.float64 else result.float()
    arrays = (wide.numpy(force=True), expected.numpy(force=True))
    arithmetic.assert_adasum(*arrays, torch.finfo(result.dtype).eps)


def rows_of_part(rows: int, size: int, set_rank: int) -> tuple[int, int]:
    """The rows that a reducescatter gives to a rank: from, to."""
    part = arithmetic.rows_of_part(rows, size, set_rank)
    return part.start, part.stop


def exchanged(
    inputs: Sequence[Tensor], splits: Sequence[Sequence[int]], set_rank: int
) -> tuple[Tensor, list[int]]:
    """The result of an alltoall on a rank: its rows, and the number from each rank."""
    parts = []
    for tensor, counts in zip(inputs, splits, strict=True):
        begin = sum(counts[:set_rank])
        parts.append(tensor[begin : begin + counts[set_rank]])
    return torch.cat(parts), [counts[set_rank] for counts in splits]
