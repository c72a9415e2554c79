"""The arguments of a process group's methods, as torch gives them, and reduce ops for the engine.

Most methods have two forms: with an object of options at the end, or with a root rank, a reduce op
or a timeout in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast

import torch
from torch.distributed import ReduceOp

from horovod.core.operations import Average, Intent, Max, Min, Product, Sum

Tensors = Sequence[torch.Tensor]
Lists = Sequence[Sequence[torch.Tensor]]

_COMPUTE, _WAIT = Intent.COMPUTE, Intent.WAIT
_NO_TIME = timedelta(0)


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


def reduction_in(opts: Any, op: Any, tensor: torch.Tensor, title: str) -> Reduction:
    """The reduce op of a call: in its options, in their place, or ``op``; else a sum."""
    given = getattr(opts, "reduceOp", op)
    if given is None:
        given = ReduceOp.SUM if opts is None else opts
    return reduction_of(given, tensor, title)


def root_in(opts: Any) -> int:
    """The root rank in the options, or in their place."""
    return opts if isinstance(opts, int) else int(opts.rootRank)


def limit_of(opts: Any, timeout_s: float) -> float:
    """How long to wait: the call's timeout if it has one, else the group's."""
    given = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
    return timeout_s if given is None or given <= _NO_TIME else float(given.total_seconds())


def intent_of(opts: Any) -> Intent:
    """What the caller does next."""
    return _COMPUTE if getattr(opts, "asyncOp", True) else _WAIT


def only_list(lists: Lists | Tensors, title: str) -> Tensors:
    """The list of tensors of a call, or of its only list. ``ValueError`` for none or several."""
    if not lists or (len(lists) != 1 and not isinstance(lists[0], torch.Tensor)):
        raise ValueError(f"{title}: expected one list of tensors, found {len(lists)}")
    first = lists[0]
    return cast("Tensors", lists) if isinstance(first, torch.Tensor) else first


def check_count(tensors: Tensors, size: int, title: str) -> None:
    """``ValueError`` if there is not a tensor for each rank."""
    if len(tensors) != size:
        raise ValueError(
            f"{title}: expected a tensor for each of {size} ranks, found {len(tensors)}"
        )


def bad_output(title: str, output: torch.Tensor, input: torch.Tensor, size: int) -> ValueError:
    """The error of an output that cannot take the inputs of all ranks."""
    return ValueError(
        f"{title}: the output must have {size} times the input's elements and its dtype; "
        f"found {output.numel()} of {output.dtype}, {input.numel()} of {input.dtype}"
    )


def check_splits(
    title: str, name: str, tensor: torch.Tensor, splits: Sequence[int], size: int
) -> list[int]:
    """The rows for each rank; none given means equal parts. ``ValueError`` if they do not fit."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(f"{title}: the {name}'s {rows} rows do not divide by {size} ranks")
        return [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(
            f"{title}: {name} splits {list(splits)}: expected {size} numbers that add up to {rows}"
        )
    return list(splits)
