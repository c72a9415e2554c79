"""What autograd does with the collectives of ``differentiable``.

``run`` is the adapter's operation on a list of tensors, and ``again`` is the public one, which the
backward pass calls, so that a gradient has a gradient too. ``as_group`` makes them of operations on
one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from horovod.core.calls import check_gradient
from horovod.core.operations import Kind, Sum
from horovod.core.process_sets import ProcessSet
from horovod.torch import adapter
from horovod.torch.compression import Compression
from horovod.torch.uncompiled import keep_uncompiled

Operation = Callable[..., Sequence[Tensor]]
Backward = Callable[..., Sequence[Tensor | None]]


def needs_gradient(tensor: Tensor) -> bool:
    """Whether autograd has to know what happens to ``tensor``; ValueError if it is none."""
    try:
        return tensor.requires_grad and torch.is_grad_enabled()
    except AttributeError:
        raise ValueError(adapter.not_a_tensor(tensor)) from None


def gradient_name(name: str | None, suffix: str = "grad") -> str | None:
    """The name of an operation of the backward pass."""
    return None if name is None else f"{name}.{suffix}"


def as_group(operation: Callable[..., Tensor]) -> Operation:
    """An operation on one tensor, as one on a list of one."""
    return lambda tensors, *args, **options: (operation(tensors[0], *args, **options),)


def with_gradient(
    run: Operation, backward: Backward, tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """``run(tensors)``; ``backward`` makes gradients of the inputs from those of the outputs."""
    outputs: tuple[Tensor, ...] = _Collective.apply(run, backward, *tensors)  # type: ignore[no-untyped-call]
    return outputs


class _Collective(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, run: Operation, backward: Backward, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.gradients = backward
        outputs = tuple(run([tensor.detach() for tensor in tensors]))
        if outputs[-1].dtype == torch.int32:  # the splits that an alltoall received
            ctx.mark_non_differentiable(outputs[-1])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.gradients([grad.resolve_conj().contiguous() for grad in grads]))


keep_uncompiled(_Collective)


def is_float(tensor: Tensor) -> bool:
    """Whether it has floating numbers, real or complex ones: others have no gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def allreduce_with_gradient(
    run: Operation, again: Operation, tensors: Sequence[Tensor], name: str | None, *options: Any
) -> tuple[Tensor, ...]:
    """``run``, with the same reduction of gradients; ``options`` begin with the op."""

    def backward(grads: Sequence[Tensor]) -> Sequence[Tensor]:
        check_gradient(Kind.ALLREDUCE, options[0], "detach the tensor")
        return again(grads, None, gradient_name(name), Compression.none, *options)

    return with_gradient(lambda given: run(given, None, name, *options), backward, tensors)


def allgather_with_gradient(
    run: Operation,
    reduce: Operation,
    tensors: Sequence[Tensor],
    name: str | None,
    process_set: ProcessSet,
) -> tuple[Tensor, ...]:
    """``run``, with this rank's rows of the averages that ``reduce`` makes of gradients."""
    rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]

    def backward(grads: Sequence[Tensor]) -> list[Tensor | None]:
        own = torch.tensor([rows], dtype=torch.int64, device="cpu")
        sizes = adapter.allgather(own, gradient_name(name, "rows"), process_set)
        begins = sizes[: process_set.rank()].sum(0).tolist()
        floats = [grad for grad in grads if is_float(grad)]
        reduced = iter(reduce(floats, name=gradient_name(name), process_set=process_set))
        cut = zip(grads, begins, rows, strict=True)
        return [
            next(reduced).narrow(0, begin, count) if is_float(grad) else None
            for grad, begin, count in cut
        ]

    return with_gradient(lambda given: run(given, name, process_set), backward, tensors)


def reducescatter_with_gradient(
    run: Operation,
    gather: Operation,
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    process_set: ProcessSet,
    *factors: float,
) -> tuple[Tensor, ...]:
    """``run``, with the gathered gradients times the factors, and for ``Sum`` times the size."""
    factor = factors[0] * factors[1] * ((process_set.size() or 1) if op == Sum else 1)
    options = (name, op, process_set, *factors)

    def backward(grads: Sequence[Tensor]) -> list[Tensor]:
        return [grad * factor for grad in gather(grads, gradient_name(name), process_set)]

    return with_gradient(lambda given: run(given, *options), backward, tensors)
