"""Gradients of the collectives: collectives too, on the same process set.

Plain functions over an implementation of ``CollectiveOps``; the native ops register them by
operation type, the others through ``tf.custom_gradient``. The backward pass has to reach an
operation on every rank, as the forward pass did. Arguments after ``ops`` and the gradients are
those of the forward call. A gradient that is None, as of an integer or of what was not used, stays
None and takes part in nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from horovod.core.operations import Average, Sum
from horovod.tensorflow.collective_ops import CollectiveOps
from horovod.tensorflow.names import derived

__all__ = [
    "of_allgather",
    "of_allreduce",
    "of_alltoall",
    "of_broadcast",
    "of_even_allgather",
    "of_reducescatter",
]


def of_allreduce(
    ops: CollectiveOps,
    grads: Sequence[Any],
    names: Sequence[str],
    op: int,
    prescale: float,
    postscale: float,
    process_set: int,
    is_group: bool,
) -> list[Any]:
    """The gradients of all ranks, reduced with the same op and factors.

    Raises:
        NotImplementedError: the op is not linear.
    """
    if op not in (Average, Sum):
        raise NotImplementedError(
            "allreduce: only Average and Sum have a gradient; use tf.stop_gradient on the tensor "
            "before reducing it with another op"
        )

    def reduce(there: _There) -> list[Any]:
        named = derived(there.names, "grad")
        return ops.allreduce(there.grads, named, op, prescale, postscale, process_set, is_group)

    return _where_there(grads, names, is_group, reduce)


def of_allgather(
    ops: CollectiveOps,
    grads: Sequence[Any],
    tensors: Sequence[Any],
    names: Sequence[str],
    process_set: int,
    is_group: bool,
) -> list[Any]:
    """Of the average of all ranks' gradients the rows that this rank gave."""

    def reduce(there: _There) -> list[Any]:
        rows = [tf.shape(tensors[position])[:1] for position in there.positions]
        named = derived(there.names, "rows")
        rows_of_ranks = ops.allgather(rows, named, process_set, is_group)
        reduced = _average(ops, there, process_set, is_group)
        position = ops.world_number("rank", process_set, None)
        begins = [tf.reduce_sum(counts[:position]) for counts in rows_of_ranks]
        cut = zip(reduced, begins, rows, strict=True)
        return [grad[begin : begin + count[0]] for grad, begin, count in cut]

    return _where_there(grads, names, is_group, reduce)


def of_even_allgather(
    ops: CollectiveOps,
    grads: Sequence[Any],
    tensors: Sequence[Any],
    names: Sequence[str],
    process_set: int,
    is_group: bool,
) -> list[Any]:
    """``of_allgather`` where all ranks gave as many rows, and shapes are static."""

    def reduce(there: _There) -> list[Any]:
        shapes = [tensors[position].shape for position in there.positions]
        reduced = _average(ops, there, process_set, is_group)
        place = ops.world_number("rank", process_set, None)
        cut = zip(reduced, shapes, strict=True)
        return [
            tf.slice(grad, [place * shape[0], *[0] * (shape.rank - 1)], shape)
            for grad, shape in cut
        ]

    return _where_there(grads, names, is_group, reduce)


def of_broadcast(
    ops: CollectiveOps,
    grads: Sequence[Any],
    names: Sequence[str],
    root_rank: int,
    process_set: int,
) -> list[Any]:
    """On the root the average of all ranks' gradients, zeros elsewhere."""

    def reduce(there: _There) -> list[Any]:
        reduced = _average(ops, there, process_set, False)
        is_root = tf.equal(ops.world_number("rank", 0, None), root_rank)
        return [tf.where(is_root, grad, tf.zeros_like(grad)) for grad in reduced]

    return _where_there(grads, names, False, reduce)


def of_alltoall(
    ops: CollectiveOps,
    grad: Any,
    tensor: Any,
    received_splits: Any,
    name: str,
    process_set: int,
) -> Any:
    """The gradients of the rows, sent back where they came from; zeros for rows that stayed."""

    def send_back(there: _There) -> list[Any]:
        (own,), (named,) = there.grads, derived(there.names, "grad")
        back, _ = ops.alltoall(own, received_splits, named, process_set)
        shape = tf.shape(tensor)
        unsent = shape[:1] - tf.shape(back)[:1]
        return [tf.concat([back, tf.zeros(tf.concat([unsent, shape[1:]], 0), back.dtype)], 0)]

    return _where_there([grad], [name], False, send_back)[0]


def of_reducescatter(
    ops: CollectiveOps,
    grads: Sequence[Any],
    names: Sequence[str],
    op: int,
    prescale: float,
    postscale: float,
    process_set: int,
    is_group: bool,
) -> list[Any]:
    """The gradients of all ranks joined, times the factors, and for Sum times the set's size."""

    def join(there: _There) -> list[Any]:
        joined = ops.allgather(there.grads, derived(there.names, "grad"), process_set, is_group)
        factor = tf.constant(prescale * postscale, tf.float64)
        if op == Sum:
            factor *= tf.cast(ops.world_number("size", process_set, None), tf.float64)
        return [grad * tf.cast(factor, grad.dtype) for grad in joined]

    return _where_there(grads, names, is_group, join)


@dataclass(frozen=True)
class _There:
    """The gradients that are not None, where they stand, and the names of their operations."""

    grads: list[Any]
    positions: list[int]
    names: Sequence[str]


def _where_there(
    grads: Sequence[Any],
    names: Sequence[str],
    is_group: bool,
    reduce: Callable[[_There], list[Any]],
) -> list[Any]:
    positions = [position for position, grad in enumerate(grads) if grad is not None]
    result: list[Any] = [None] * len(grads)
    if not positions:
        return result
    chosen = names if is_group else [names[position] for position in positions]
    dense = [tf.convert_to_tensor(grads[position]) for position in positions]
    reduced = reduce(_There(dense, positions, chosen))
    for position, grad in zip(positions, reduced, strict=True):
        result[position] = grad
    return result


def _average(ops: CollectiveOps, there: _There, process_set: int, is_group: bool) -> list[Any]:
    named = derived(there.names, "grad")
    return ops.allreduce(there.grads, named, Average, 1.0, 1.0, process_set, is_group)
