"""Grouped collectives that autograd can go through; see ``differentiable``.

A group is one operation in the backward pass too, under ``<name>.grad``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from horovod.core.compression import Compressor, compress_all, decompress_all
from horovod.core.operations import Average, resolve_op
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch import adapter
from horovod.torch.compression import Compression
from horovod.torch.gradients import (
    allgather_with_gradient,
    allreduce_with_gradient,
    needs_gradient,
    reducescatter_with_gradient,
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
    options = (op, prescale_factor, postscale_factor, process_set)
    reduced: Sequence[Tensor]
    if any(map(needs_gradient, wires)):
        functions = adapter.grouped_allreduce, grouped_allreduce
        reduced = allreduce_with_gradient(*functions, wires, name, *options)
    else:
        reduced = adapter.grouped_allreduce(wires, None, name, *options)
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
    wires, contexts = compress_all(compression, tensors)
    options: Any = (op, process_set, prescale_factor, postscale_factor)
    reduced: Sequence[Tensor]
    if any(map(needs_gradient, wires)):
        functions = adapter.grouped_reducescatter, grouped_allgather
        reduced = reducescatter_with_gradient(*functions, wires, name, *options)
    else:
        reduced = adapter.grouped_reducescatter(wires, name, *options)
    return decompress_all(compression, reduced, contexts)
