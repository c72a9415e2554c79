"""Reduction of ``tf.IndexedSlices``: rows and their indices are gathered, nothing is made dense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.core.operations import Adasum, Average, Sum
from horovod.core.process_sets import ProcessSet
from horovod.tensorflow import collectives
from horovod.tensorflow.run_time import set_size


def is_sparse(tensor: object) -> bool:
    """Whether a gradient consists of rows."""
    return isinstance(tensor, tf.IndexedSlices)


def check_sparse(op: int, prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> None:
    """Refuse reductions that gathering cannot do.

    Raises:
        NotImplementedError: ``op`` is neither Average nor Sum, or a factor is not 1.
    """
    if op == Adasum:
        raise NotImplementedError(
            "Adasum does not take sparse tensors (tf.IndexedSlices); make gradients dense, for "
            "example with sparse_as_dense=True"
        )
    if op not in (Average, Sum):
        raise NotImplementedError("tf.IndexedSlices can be reduced by Average and Sum only")
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError("tf.IndexedSlices cannot be reduced with scale factors")


def allreduce_sparse(
    slices: Any, name: str | None, op: int, process_set: ProcessSet, ignore_name_scope: bool = False
) -> Any:
    """The rows of all ranks in rank order, each divided by the set's size for Average.

    Averages of integers are floating: float32 of small ones, float64 of int32 and int64.

    ``name``: of the operations, which are called ``<name>.values`` and ``<name>.indices``.
    """
    parts = [(slices.values, _part(name, "values")), (slices.indices, _part(name, "indices"))]
    values, indices = [
        collectives.allgather(tensor, part, ignore_name_scope, process_set)
        for tensor, part in parts
    ]
    return _joined(slices, values, indices, op, process_set)


def grouped_allreduce_sparse(
    slices: Sequence[Any],
    name: str | None,
    op: int,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """``allreduce_sparse`` of several at once; all that is gathered is one group."""
    tensors = [part for one in slices for part in (one.values, one.indices)]
    gathered = collectives.grouped_allgather(
        tensors, _part(name, "sparse"), ignore_name_scope, process_set
    )
    parts = zip(slices, gathered[::2], gathered[1::2], strict=True)
    return [_joined(one, values, indices, op, process_set) for one, values, indices in parts]


def _joined(slices: Any, values: Any, indices: Any, op: int, process_set: ProcessSet) -> Any:
    if op == Average:
        if not values.dtype.is_floating:  # before the size, which may be too large for them
            values = tf.truediv(values, tf.ones([], values.dtype))
        values /= set_size(process_set, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"
