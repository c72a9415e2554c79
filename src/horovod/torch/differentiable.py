"""Collectives that autograd can go through: the blocking calls of ``horovod.torch``.

They wait and return new tensors. A tensor that needs no gradient takes the adapter's plain path.
A gradient that flows back through one of them runs collectives too: the backward pass has to reach
the call on every rank of the set, as the forward pass did. Named calls name those as
``<name>.grad`` (and, for allgather, ``<name>.rows``). A group is one operation in the backward pass
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from horovod.core.compression import (
    Compressor,
    check_compressor,
    check_not_on_links,
    compress_all,
    decompress_all,
    link_format_of,
)
from horovod.core.operations import Average, resolve_op
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch import adapter
from horovod.torch.compression import Compression
from horovod.torch.gradients import (
    allgather_with_gradient,
    allreduce_with_gradient,
    as_group,
    gradient_name,
    needs_gradient,
    reducescatter_with_gradient,
    with_gradient,
)

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
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
    options = (op, prescale_factor, postscale_factor, process_set)
    run = partial(adapter.allreduce, link_format=link_format_of(compression))
    if needs_gradient(wire):
        functions = as_group(run), as_group(allreduce)
        (reduced,) = allreduce_with_gradient(*functions, [wire], name, *options)
    else:
        reduced = run(wire, None, name, *options)
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
        functions = as_group(adapter.allgather), as_group(allreduce)
        return allgather_with_gradient(*functions, [tensor], name, process_set)[0]
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
    args = (root_rank, name, process_set)
    if not needs_gradient(tensor):
        return adapter.broadcast(tensor, *args)

    def backward(grads: Sequence[Tensor]) -> list[Tensor]:
        members: Any = process_set.ranks
        grad = allreduce(grads[0], name=gradient_name(name), process_set=process_set)
        if members[process_set.rank()] != root_rank:
            # Zeros that depend on it: a gradient of the gradient reaches the call here, too.
            grad = grad.masked_fill(torch.ones_like(grad, dtype=torch.bool), 0)
        return [grad]

    return with_gradient(lambda given: [adapter.broadcast(given[0], *args)], backward, [tensor])[0]


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
    received_splits = None

    def run(given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        nonlocal received_splits
        handle = adapter.alltoall_async(given[0], splits, name, process_set)
        output, received_splits = adapter.synchronize(handle)
        return output, received_splits

    def backward(grads: Sequence[Tensor]) -> list[Tensor]:
        grad, _ = alltoall(grads[0], received_splits, gradient_name(name), process_set)
        unsent = tensor.shape[0] - grad.shape[0]
        return [torch.cat([grad, grad.new_zeros((unsent, *grad.shape[1:]))]) if unsent else grad]

    is_plain = not needs_gradient(tensor)
    output, numbers = run([tensor]) if is_plain else with_gradient(run, backward, [tensor])
    return output if splits is None else (output, numbers)


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
    check_not_on_links(compression, "reducescatter")
    (wire,), contexts = compress_all(compression, [tensor])
    options: Any = (op, process_set, prescale_factor, postscale_factor)
    if needs_gradient(wire):
        functions = as_group(adapter.reducescatter), as_group(allgather)
        (reduced,) = reducescatter_with_gradient(*functions, [wire], name, *options)
    else:
        reduced = adapter.reducescatter(wire, name, *options)
    result: Tensor = decompress_all(compression, [reduced], contexts)[0]
    return result


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
    options = (op, prescale_factor, postscale_factor, process_set)
    run = partial(adapter.grouped_allreduce, link_format=link_format_of(compression))
    reduced: Sequence[Tensor]
    if any(map(needs_gradient, wires)):
        functions = run, grouped_allreduce
        reduced = allreduce_with_gradient(*functions, wires, name, *options)
    else:
        reduced = run(wires, None, name, *options)
    return decompress_all(compression, reduced, contexts)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
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
        functions = adapter.grouped_allgather, grouped_allreduce
        return allgather_with_gradient(*functions, tensors, name, process_set)
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
    check_not_on_links(compression, "grouped_reducescatter")
    wires, contexts = compress_all(compression, tensors)
    options: Any = (op, process_set, prescale_factor, postscale_factor)
    reduced: Sequence[Tensor]
    if any(map(needs_gradient, wires)):
        functions = adapter.grouped_reducescatter, grouped_allgather
        reduced = reducescatter_with_gradient(*functions, wires, name, *options)
    else:
        reduced = adapter.grouped_reducescatter(wires, name, *options)
    return decompress_all(compression, reduced, contexts)
