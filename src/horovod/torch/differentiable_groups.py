"""Grouped collectives that autograd can go through; see ``differentiable``.

A group is one operation in the backward pass too, under ``<name>.grad``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from horovod.core.compression import Compressor, compress_all, decompress_all
from horovod.core.operations import Average, resolve_op
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch import adapter
from horovod.torch.compression import Compression
from horovod.torch.differentiable import (
    check_op_has_gradient,
    gradient_name,
    needs_gradient,
    rows_before,
    scatter_factor,
)

__all__ = ["grouped_allgather", "grouped_allreduce", "grouped_reducescatter"]


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor | type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce several tensors as one operation: all of them or, after an error, none.

    Args:
        tensors: at least one, each as for ``allreduce``; the same shapes and dtypes in the same
            order on every rank, but dtypes may differ within the group.
        average: former way to choose between Average and Sum; use ``op``.
        name: name of the group, the same on every rank; by default a running number.
        compression: what travels instead of each tensor.
        op: as for ``allreduce``.
        prescale_factor: multiplies every input first; the same on every rank.
        postscale_factor: multiplies the results; the same on every rank.
        process_set: the ranks that take part; this process must be one of them.

    Returns:
        New tensors in the same order; gradients as for ``allreduce``.

    Raises:
        IndexError: there are no tensors.
        ValueError: a tensor is not contiguous, or this process is not in the set.
        HorovodInternalError: ranks disagree about the group, or a rank was lost.
    """
    op = resolve_op(average, op)
    wires, contexts = compress_all(compression, tensors)
    factors = (prescale_factor, postscale_factor)
    if any(map(needs_gradient, wires)):
        args = (name, op, factors, process_set, *wires)
        reduced = _GroupedAllreduce.apply(*args)  # type: ignore[no-untyped-call]
    else:
        reduced = adapter.grouped_allreduce(wires, None, name, op, *factors, process_set)
    return decompress_all(compression, reduced, contexts)


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Tensor, ...]:
    """Join each of several tensors over all ranks, as one operation; see ``allgather``.

    Args:
        tensors: at least one, each as for ``allgather``.
        name: name of the group, the same on every rank; by default a running number.
        process_set: the ranks that take part; this process must be one of them.

    Returns:
        The joined tensors in the same order; gradients as for ``allgather``.

    Raises:
        IndexError: there are no tensors.
        ValueError: a tensor is not contiguous, or this process is not in the set.
        HorovodInternalError: ranks disagree about the group, or a rank was lost.
    """
    tensors = list(tensors)
    if any(map(needs_gradient, tensors)):
        gathered: tuple[Tensor, ...] = _GroupedAllgather.apply(  # type: ignore[no-untyped-call]
            name, process_set, *tensors
        )
        return gathered
    return adapter.grouped_allgather(tensors, name, process_set)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Compressor | type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduce and scatter several tensors as one operation; see ``reducescatter``.

    Args:
        tensors: at least one, each as for ``reducescatter``.
        name: name of the group, the same on every rank; by default a running number.
        compression: what travels instead of each tensor.
        op: ``Average`` or ``Sum``.
        process_set: the ranks that take part; this process must be one of them.
        prescale_factor: multiplies every input first; the same on every rank.
        postscale_factor: multiplies the results; the same on every rank.

    Returns:
        This rank's rows of each tensor, in the same order; gradients as for ``reducescatter``.

    Raises:
        IndexError: there are no tensors.
        ValueError: a tensor is not contiguous or has no dimension, or this process is not in the
            set.
        HorovodInternalError: another op, ranks disagree about the group, or a rank was lost.
    """
    wires, contexts = compress_all(compression, tensors)
    factors = (prescale_factor, postscale_factor)
    if any(map(needs_gradient, wires)):
        args = (name, op, factors, process_set, *wires)
        reduced = _GroupedReducescatter.apply(*args)  # type: ignore[no-untyped-call]
    else:
        reduced = adapter.grouped_reducescatter(wires, name, op, process_set, *factors)
    return decompress_all(compression, reduced, contexts)


def _detached(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors]


def _contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        factors: tuple[float, float],
        process_set: ProcessSet,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.name, ctx.op, ctx.factors, ctx.process_set = name, op, factors, process_set
        args = (_detached(tensors), None, name, op, *factors, process_set)
        return tuple(adapter.grouped_allreduce(*args))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        check_op_has_gradient(ctx.op)
        reduced = grouped_allreduce(
            _contiguous(grads),
            name=gradient_name(ctx.name),
            op=ctx.op,
            prescale_factor=ctx.factors[0],
            postscale_factor=ctx.factors[1],
            process_set=ctx.process_set,
        )
        return (None, None, None, None, *reduced)


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.name, ctx.process_set = name, process_set
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        return adapter.grouped_allgather(_detached(tensors), name, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        process_set = ctx.process_set
        own = torch.tensor([ctx.rows], dtype=torch.int64)
        sizes = adapter.allgather(own, gradient_name(ctx.name, "rows"), process_set)
        reduced = grouped_allreduce(
            _contiguous(grads), name=gradient_name(ctx.name), process_set=process_set
        )
        begins = [rows_before(column, process_set) for column in sizes.t().tolist()]
        cut = zip(reduced, begins, ctx.rows, strict=True)
        return (None, None, *(grad.narrow(0, begin, rows) for grad, begin, rows in cut))


class _GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        factors: tuple[float, float],
        process_set: ProcessSet,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.name, ctx.process_set = name, process_set
        ctx.factor = scatter_factor(op, factors, process_set)
        args = (_detached(tensors), name, op, process_set, *factors)
        return tuple(adapter.grouped_reducescatter(*args))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        joined = grouped_allgather(_contiguous(grads), gradient_name(ctx.name), ctx.process_set)
        return (None, None, None, None, *(grad * ctx.factor for grad in joined))
