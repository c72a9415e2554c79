"""Reduce ops of ``torch.distributed`` in the engine's terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from horovod.core.operations import Average, Max, Min, Product, Sum


class Reduction(NamedTuple):
    """How the ranks' tensors become one.

    Attributes:
        op: the engine's op.
        prescale: multiplies each rank's tensor before.
        bitwise: the op of two tensors, where the engine has none: every rank gets all tensors.
        is_sum: or an average, which the engine can also scatter.
    """

    op: int
    prescale: float = 1.0
    bitwise: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    is_sum: bool = False


# By torch's numbers: its ops are slow to hash and to compare.
_FOR_ALL_DTYPES = {
    ReduceOp.SUM.value: Reduction(Sum, is_sum=True),
    ReduceOp.AVG.value: Reduction(Average, is_sum=True),
}
_FOR_SOME_DTYPES = {
    ReduceOp.MIN.value: Reduction(Min),
    ReduceOp.MAX.value: Reduction(Max),
    ReduceOp.PRODUCT.value: Reduction(Product),
    ReduceOp.BAND.value: Reduction(Sum, bitwise=torch.bitwise_and),
    ReduceOp.BOR.value: Reduction(Sum, bitwise=torch.bitwise_or),
    ReduceOp.BXOR.value: Reduction(Sum, bitwise=torch.bitwise_xor),
}


def reduction_of(op: Any, tensor: torch.Tensor, title: str) -> Reduction:
    """What ``op`` asks for.

    Raises:
        ValueError: it is none of torch's, or makes no sense for the tensor's dtype.
    """
    kind = getattr(op, "op", op)
    number = getattr(kind, "value", None)
    return _FOR_ALL_DTYPES.get(number) or _for_dtype(op, kind, tensor, title)


def _for_dtype(op: Any, kind: Any, tensor: torch.Tensor, title: str) -> Reduction:
    if kind == ReduceOp.PREMUL_SUM:
        return Reduction(Sum, _factor(op, title), is_sum=True)
    found = _FOR_SOME_DTYPES.get(getattr(kind, "value", None))
    if found is None:
        raise ValueError(f"{title}: unknown reduce op {op!r}")
    if tensor.is_complex() or (found.bitwise is not None and tensor.is_floating_point()):
        raise ValueError(f"{title}: {kind} of {tensor.dtype} is not defined")
    return found


def _factor(op: Any, title: str) -> float:
    factor = op.__getstate__()[1]
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise ValueError(f"{title}: PREMUL_SUM needs one factor, found {factor.numel()}")
        return float(factor.item())
    return float(factor)
