"""Collectives that autograd can go through: the blocking calls of ``horovod.torch``.

They wait and return new tensors. A tensor that needs no gradient takes the adapter's plain path.
A gradient that flows back through one of them runs collectives too: the backward pass has to reach
the call on every rank of the set, as the forward pass did. Named calls name those as
``<name>.grad`` (and, for allgather, ``<name>.rows``). Grouped calls are in
``differentiable_groups``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from horovod.core.calls import check_gradient
from horovod.core.compression import Compressor, check_compressor
from horovod.core.operations import Average, Kind, Sum, resolve_op
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch import adapter
from horovod.torch.compression import Compression

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "check_op_has_gradient",
    "gradient_name",
    "needs_gradient",
    "reducescatter",
    "rows_before",
    "scatter_factor",
]


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor | type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce a tensor over all ranks and wait for the result.

    Args:
        tensor: dense and contiguous, any shape; same shape and dtype on every rank.
        average: former way to choose between Average and Sum; use ``op``.
        name: name of the operation, the same on every rank; by default a running number.
        compression: what travels instead of ``tensor``, for example ``Compression.fp16``.
        op: ``Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product``, or ``Adasum`` for floats.
        prescale_factor: multiplies every input first; the same on every rank.
        postscale_factor: multiplies the result; the same on every rank.
        process_set: the ranks that take part; this process must be one of them.

    Returns:
        A new tensor like ``tensor``, bitwise the same on every rank. With ``Average`` and ``Sum``
        its gradient is the gradients of all ranks reduced with the same op and factors; other ops
        have none (``NotImplementedError`` from ``backward``).

    Raises:
        ValueError: the tensor is not contiguous, ``average`` and ``op`` are both given, or this
            process is not in the set.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    op = resolve_op(average, op)
    try:
        wire, context = compression.compress(tensor)
    except AttributeError:
        check_compressor(compression)
        raise
    factors = (prescale_factor, postscale_factor)
    if needs_gradient(wire):
        args = (wire, name, op, factors, process_set)
        reduced = _Allreduce.apply(*args)  # type: ignore[no-untyped-call]
    else:
        reduced = adapter.allreduce(wire, None, name, op, *factors, process_set)
    result: Tensor = compression.decompress(reduced, context)
    return result


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Join the tensors of all ranks along the first dimension, in rank order.

    Args:
        tensor: ``[rows, ...]``, contiguous, at least one dimension; ``rows`` may differ between
            ranks and be 0, the other dimensions and the dtype may not.
        name: name of the operation, the same on every rank; by default a running number.
        process_set: the ranks that take part; this process must be one of them.

    Returns:
        A new tensor ``[sum of rows, ...]``. Its gradient is the average over ranks of the gradients
        of the whole result, cut to this rank's rows.

    Raises:
        ValueError: the tensor is not contiguous, or this process is not in the set.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    if needs_gradient(tensor):
        gathered: Tensor = _Allgather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]
        return gathered
    return adapter.allgather(tensor, name, process_set)


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Copy one rank's tensor to all ranks.

    Args:
        tensor: contiguous, any shape; same shape and dtype on every rank.
        root_rank: the rank of the world whose values all ranks get; the same on every rank.
        name: name of the operation, the same on every rank; by default a running number.
        process_set: the ranks that take part; this process and the root must be among them.

    Returns:
        A new tensor with the root's values. Its gradient is the average over ranks on the root and
        zeros elsewhere.

    Raises:
        ValueError: the tensor is not contiguous, there is no such root rank in the set, or this
            process is not in it.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    if needs_gradient(tensor):
        args = (tensor, root_rank, name, process_set)
        received: Tensor = _Broadcast.apply(*args)  # type: ignore[no-untyped-call]
        return received
    return adapter.broadcast(tensor, root_rank, name, process_set)


def alltoall(
    tensor: Tensor,
    splits: Tensor | list[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """Send every rank its part of the first dimension, and receive the parts meant for this one.

    Args:
        tensor: ``[rows, ...]``, contiguous; ``rows`` may differ between ranks, the rest may not.
        splits: rows for each rank of the set, an int32 vector or a list; 0 is allowed, and rows
            beyond their sum stay. By default equal parts; then ``rows`` must be a multiple of the
            number of ranks.
        name: name of the operation, the same on every rank; by default a running number.
        process_set: the ranks that take part; this process must be one of them.

    Returns:
        The rows received, in rank order; with ``splits``, a pair of them and an int32 tensor of
        how many came from each rank. Gradients travel back the way the rows came.

    Raises:
        ValueError: the tensor is not contiguous, ``splits`` does not fit, or this process is not
            in the set.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    if needs_gradient(tensor):
        args = (tensor, splits, name, process_set)
        received = _Alltoall.apply(*args)  # type: ignore[no-untyped-call]
    else:
        received = adapter.synchronize(adapter.alltoall_async(tensor, splits, name, process_set))
    output: Tensor = received[0]
    return output if splits is None else (output, received[1])


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Compressor | type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce a tensor over all ranks; every rank gets its part of the rows.

    Args:
        tensor: ``[rows, ...]``, contiguous, the same shape and dtype on every rank. A rank gets
            ``rows // size`` of them in rank order, the first ``rows % size`` ranks one more.
        name: name of the operation, the same on every rank; by default a running number.
        compression: what travels instead of ``tensor``, for example ``Compression.fp16``.
        op: ``Average`` or ``Sum``.
        process_set: the ranks that take part; this process must be one of them.
        prescale_factor: multiplies every input first; the same on every rank.
        postscale_factor: multiplies the result; the same on every rank.

    Returns:
        A new tensor with this rank's rows. Its gradient is the joined gradients of all ranks, times
        the factors, and for ``Sum`` times the number of ranks.

    Raises:
        ValueError: the tensor is not contiguous or has no dimension, or this process is not in the
            set.
        HorovodInternalError: another op, ranks disagree about the operation, or a rank was lost.
    """
    try:
        wire, context = compression.compress(tensor)
    except AttributeError:
        check_compressor(compression)
        raise
    factors = (prescale_factor, postscale_factor)
    if needs_gradient(wire):
        args = (wire, name, op, factors, process_set)
        reduced = _Reducescatter.apply(*args)  # type: ignore[no-untyped-call]
    else:
        reduced = adapter.reducescatter(wire, name, op, process_set, *factors)
    result: Tensor = compression.decompress(reduced, context)
    return result


def needs_gradient(tensor: Tensor) -> bool:
    """Whether autograd has to know what happens to ``tensor``; ValueError if it is none."""
    try:
        return tensor.requires_grad and torch.is_grad_enabled()
    except AttributeError:
        raise ValueError(f"expected a torch tensor, found {type(tensor).__name__}") from None


def gradient_name(name: str | None, suffix: str = "grad") -> str | None:
    """The name of an operation of the backward pass."""
    return None if name is None else f"{name}.{suffix}"


def check_op_has_gradient(op: int) -> None:
    """Refuse the backward pass of reductions that are not linear."""
    check_gradient(Kind.ALLREDUCE, op, "detach the tensor")


def scatter_factor(op: int, factors: tuple[float, float], process_set: ProcessSet) -> float:
    """What the joined gradients of a reducescatter are multiplied with (as documented)."""
    size = process_set.size() or 1
    return factors[0] * factors[1] * (size if op == Sum else 1)


def rows_before(rows: list[int], process_set: ProcessSet) -> int:
    """Where this rank's rows begin in what an allgather has joined."""
    return sum(rows[: process_set.rank()])


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        name: str | None,
        op: int,
        factors: tuple[float, float],
        process_set: ProcessSet,
    ) -> Tensor:
        ctx.name, ctx.op, ctx.factors, ctx.process_set = name, op, factors, process_set
        return adapter.allreduce(tensor.detach(), None, name, op, *factors, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        check_op_has_gradient(ctx.op)
        grad = allreduce(
            grads[0].contiguous(),
            name=gradient_name(ctx.name),
            op=ctx.op,
            prescale_factor=ctx.factors[0],
            postscale_factor=ctx.factors[1],
            process_set=ctx.process_set,
        )
        return grad, None, None, None, None


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.name, ctx.process_set = name, process_set
        ctx.rows = tensor.shape[0] if tensor.dim() else 0
        return adapter.allgather(tensor.detach(), name, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        process_set = ctx.process_set
        rows = torch.tensor([ctx.rows], dtype=torch.int64)
        sizes = adapter.allgather(rows, gradient_name(ctx.name, "rows"), process_set).tolist()
        grad = allreduce(
            grads[0].contiguous(), name=gradient_name(ctx.name), process_set=process_set
        )
        return grad.narrow(0, rows_before(sizes, process_set), ctx.rows), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> Tensor:
        ctx.name, ctx.root_rank, ctx.process_set = name, root_rank, process_set
        return adapter.broadcast(tensor.detach(), root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        process_set = ctx.process_set
        grad = allreduce(
            grads[0].contiguous(), name=gradient_name(ctx.name), process_set=process_set
        )
        is_root = process_set.ranks[process_set.rank()] == ctx.root_rank
        return (grad if is_root else torch.zeros_like(grad)), None, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        splits: Tensor | list[int] | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[Tensor, Tensor]:
        handle = adapter.alltoall_async(tensor.detach(), splits, name, process_set)
        output, received_splits = adapter.synchronize(handle)
        ctx.name, ctx.process_set, ctx.rows = name, process_set, tensor.shape[0]
        ctx.received_splits = received_splits
        ctx.mark_non_differentiable(received_splits)
        return output, received_splits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, _ = alltoall(
            grads[0].contiguous(), ctx.received_splits, gradient_name(ctx.name), ctx.process_set
        )
        unsent = ctx.rows - grad.shape[0]
        if unsent:
            grad = torch.cat([grad, grad.new_zeros((unsent, *grad.shape[1:]))])
        return grad, None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        name: str | None,
        op: int,
        factors: tuple[float, float],
        process_set: ProcessSet,
    ) -> Tensor:
        ctx.name, ctx.process_set = name, process_set
        ctx.factor = scatter_factor(op, factors, process_set)
        return adapter.reducescatter(tensor.detach(), name, op, process_set, *factors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = allgather(grads[0].contiguous(), gradient_name(ctx.name), ctx.process_set)
        return grad * ctx.factor, None, None, None, None
