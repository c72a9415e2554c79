"""Collectives that autograd can see through: ``allreduce``, ``allgather``, ``broadcast``.

They block and return new tensors. A tensor that needs no gradient takes the adapter's plain path.
A gradient that flows back through one of them runs collectives too: the backward pass has to reach
the call on every rank, as the forward pass did. Named calls name those as ``<name>.grad``
(and, for allgather, ``<name>.rows``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from horovod.compression import Compressor
from horovod.operations import Average, Sum, resolve_op
from horovod.torch import adapter
from horovod.torch.compression import Compression
from horovod.world import rank

__all__ = ["allgather", "allreduce", "broadcast"]


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce a tensor over all ranks and wait for the result.

    Args:
        tensor: dense and contiguous, any shape; same shape and dtype on every rank.
        average: former way to choose between Average and Sum; use ``op``.
        name: name of the operation, the same on every rank; by default a running number.
        compression: what travels instead of ``tensor``, for example ``Compression.fp16``.
        op: ``Average`` (default), ``Sum``, ``Min``, ``Max`` or ``Product``.
        prescale_factor: multiplies every input first; the same on every rank.
        postscale_factor: multiplies the result; the same on every rank.

    Returns:
        A new tensor like ``tensor``, bitwise the same on every rank. Its gradient is the gradients
        of all ranks reduced with the same op and factors.

    Raises:
        ValueError: the tensor is not contiguous, or ``average`` and ``op`` are both given.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    op = resolve_op(average, op)
    wire, context = compression.compress(tensor)
    if wire.requires_grad and torch.is_grad_enabled():
        factors = (prescale_factor, postscale_factor)
        reduced = _Allreduce.apply(wire, name, op, *factors)  # type: ignore[no-untyped-call]
    else:
        reduced = adapter.allreduce(wire, None, name, op, prescale_factor, postscale_factor)
    result: Tensor = compression.decompress(reduced, context)
    return result


def allgather(tensor: Tensor, name: str | None = None) -> Tensor:
    """Join the tensors of all ranks along the first dimension, in rank order.

    Args:
        tensor: ``[rows, ...]``, contiguous, at least one dimension; ``rows`` may differ between
            ranks and be 0, the other dimensions and the dtype may not.
        name: name of the operation, the same on every rank; by default a running number.

    Returns:
        A new tensor ``[sum of rows, ...]``. Its gradient is the average over ranks of the gradients
        of the whole result, cut to this rank's rows.

    Raises:
        ValueError: the tensor is not contiguous.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        gathered: Tensor = _Allgather.apply(tensor, name)  # type: ignore[no-untyped-call]
        return gathered
    return adapter.allgather(tensor, name)


def broadcast(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Copy one rank's tensor to all ranks.

    Args:
        tensor: contiguous, any shape; same shape and dtype on every rank.
        root_rank: the rank whose values all ranks get; the same on every rank.
        name: name of the operation, the same on every rank; by default a running number.

    Returns:
        A new tensor with the root's values. Its gradient is the average over ranks on the root and
        zeros elsewhere.

    Raises:
        ValueError: the tensor is not contiguous, or there is no such root rank.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    if tensor.requires_grad and torch.is_grad_enabled():
        args = (tensor, root_rank, name)
        received: Tensor = _Broadcast.apply(*args)  # type: ignore[no-untyped-call]
        return received
    return adapter.broadcast(tensor, root_rank, name)


def _grad_name(name: str | None, suffix: str = "grad") -> str | None:
    return None if name is None else f"{name}.{suffix}"


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float
    ) -> Tensor:
        ctx.name, ctx.op, ctx.factors = name, op, (prescale, postscale)
        return adapter.allreduce(tensor.detach(), None, name, op, prescale, postscale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.op not in (Average, Sum):
            raise NotImplementedError(
                "allreduce: only Average and Sum have a gradient; detach the tensor "
                "before reducing it with another op"
            )
        grad = allreduce(
            grads[0].contiguous(),
            name=_grad_name(ctx.name),
            op=ctx.op,
            prescale_factor=ctx.factors[0],
            postscale_factor=ctx.factors[1],
        )
        return grad, None, None, None, None


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None) -> Tensor:
        ctx.name, ctx.rows = name, tensor.shape[0] if tensor.dim() else 0
        return adapter.allgather(tensor.detach(), name)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows = torch.tensor([ctx.rows], dtype=torch.int64)
        sizes = adapter.allgather(rows, _grad_name(ctx.name, "rows")).tolist()
        grad = allreduce(grads[0].contiguous(), name=_grad_name(ctx.name), op=Average)
        return grad.narrow(0, sum(sizes[: rank()]), ctx.rows), None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None) -> Tensor:
        ctx.name, ctx.root_rank = name, root_rank
        return adapter.broadcast(tensor.detach(), root_rank, name)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = allreduce(grads[0].contiguous(), name=_grad_name(ctx.name), op=Average)
        return (grad if rank() == ctx.root_rank else torch.zeros_like(grad)), None, None
