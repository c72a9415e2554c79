"""The arguments of a process group's methods, as torch gives them.

Most methods have two forms: with an object of options at the end, or with a root rank, a reduce op
or a timeout in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch

from horovod.core.operations import Intent
from horovod.torch.distributed.reduce_ops import Reduction, reduction_of

Tensors = Sequence[torch.Tensor]
Lists = Sequence[Sequence[torch.Tensor]]

_COMPUTE, _WAIT = Intent.COMPUTE, Intent.WAIT
_NO_TIME = timedelta(0)


def reduction_in(opts: Any, op: Any, tensor: torch.Tensor, title: str) -> Reduction:
    """The reduce op of a call: in its options, in their place, or ``op``; else a sum."""
    given = getattr(opts, "reduceOp", op)
    if given is None:
        given = torch.distributed.ReduceOp.SUM if opts is None else opts
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
