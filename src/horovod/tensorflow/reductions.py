"""The public collectives with compression, rows and deprecated arguments.

Dense tensors are compressed, given to ``collectives`` and decompressed. ``tf.IndexedSlices`` are
gathered. All work eagerly, in ``tf.function`` and in TF1 sessions, and have gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.core.compression import compress_all, decompress_all
from horovod.core.operations import Average, resolve_op
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import collectives
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.run_time import placed_on
from horovod.tensorflow.sparse import (
    allreduce_sparse,
    check_sparse,
    grouped_allreduce_sparse,
    is_sparse,
)

__all__ = [
    "allreduce",
    "alltoall",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]


@not_converted
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks; eagerly it blocks until all have called it.

    Args:
        tensor: a ``tf.Tensor`` or ``tf.Variable`` of any shape and of dtype uint8, int8, int32,
            int64, float16, bfloat16, float32 or float64, both the same on every rank; or
            ``tf.IndexedSlices`` with any number of rows.
        average: deprecated, use ``op``.
        device_dense, device_sparse: where to place the operation for a tensor, for rows; "" leaves
            it to TensorFlow.
        compression: what travels, for example ``Compression.fp16``; not applied to rows.
        op: ``Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product``, or ``Adasum`` for floats.
        prescale_factor: multiplies every input before the reduction; equal on all ranks.
        postscale_factor: multiplies the result; equal on all ranks.
        name: of the operation; the same on every rank.
        process_set: the ranks that take part; this process must be one of them.
        ignore_name_scope: leave the name scope out of the operation's name.

    Returns:
        The result, of the tensor's shape and dtype; for rows ``tf.IndexedSlices`` with the rows of
        all ranks in rank order, divided by the set's size for Average; averages of integers are
        floating.

    Raises:
        NotImplementedError: rows with another op than Average and Sum, or with factors.
        ValueError: an argument is unusable.
        tf.errors.InvalidArgumentError: this rank cannot take part as asked.
        tf.errors.FailedPreconditionError: ranks disagree.
        tf.errors.UnknownError: a rank was lost.
    """
    op = resolve_op(average, op)
    if is_sparse(tensor):
        check_sparse(op, prescale_factor, postscale_factor)
        with placed_on(device_sparse):
            return allreduce_sparse(tensor, name, op, process_set, ignore_name_scope)
    (packed,), contexts = _compress([tensor], compression)
    with placed_on(device_dense):
        reduced = collectives.allreduce(
            packed, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
        )
    return decompress_all(compression, [reduced], contexts)[0]


@not_converted
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Any:
    """Reduce several tensors as one operation, which runs whole once all ranks have started it.

    Args:
        tensors: what ``allreduce`` takes, dense and rows in any order; the same number and order
            on every rank. Rows are gathered as a group of their own.

    Other arguments and errors are those of ``allreduce``.

    Returns:
        A list of results in the order of ``tensors``; nothing given comes back as it is.
    """
    op = resolve_op(average, op)
    if not tensors:
        return tensors
    result = list(tensors)
    sparse = [position for position, tensor in enumerate(result) if is_sparse(tensor)]
    dense = [position for position in range(len(result)) if position not in sparse]
    if sparse:
        check_sparse(op, prescale_factor, postscale_factor)
        rows = [result[position] for position in sparse]
        with placed_on(device_sparse):
            reduced = grouped_allreduce_sparse(rows, name, op, process_set, ignore_name_scope)
        _put(result, sparse, reduced)
    if dense:
        packed, contexts = _compress([result[position] for position in dense], compression)
        with placed_on(device_dense):
            reduced = collectives.grouped_allreduce(
                packed, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
            )
        _put(result, dense, decompress_all(compression, reduced, contexts))
    return result


@not_converted
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a tensor over all ranks and keep this rank's rows; arguments as for ``allreduce``.

    Args:
        tensor: ``[n, ...]``, the same shape on every rank; int32, int64 or any float dtype.
        op: ``Average`` or ``Sum``.

    Returns:
        ``n // size`` rows, one more on each of the first ``n % size`` ranks.
    """
    (packed,), contexts = _compress([tensor], compression)
    with placed_on(device_dense):
        reduced = collectives.reducescatter(
            packed, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
        )
    return decompress_all(compression, [reduced], contexts)[0]


@not_converted
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """``reducescatter`` of several tensors as one operation; a list in their order.

    Nothing given comes back as it is.
    """
    if not tensors:
        return tensors
    packed, contexts = _compress(tensors, compression)
    with placed_on(device_dense):
        reduced = collectives.grouped_reducescatter(
            packed, None, op, prescale_factor, postscale_factor, False, process_set
        )
    return decompress_all(compression, reduced, contexts)


@not_converted
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its part of the rows; eagerly it blocks until all have called it.

    Args:
        tensor: ``[n, ...]``; n may differ between ranks.
        splits: int32 vector, how many rows each rank of the set gets, in rank order; without it
            all get equally many, and n must be divisible.
        name, ignore_name_scope, process_set: as for ``allreduce``.

    Returns:
        The rows received, in rank order; with ``splits`` a pair: them and an int32 vector, how
        many came from each rank.

    Raises:
        tf.errors.InvalidArgumentError: ``splits`` does not fit.
    """
    output, received_splits = collectives.alltoall(
        tensor, splits, name, ignore_name_scope, process_set
    )
    return output if splits is None else (output, received_splits)


def _compress(tensors: Sequence[Any], compression: Any) -> tuple[list[Any], list[Any]]:
    if compression is Compression.none:
        return list(tensors), [None] * len(tensors)
    return compress_all(compression, [tf.convert_to_tensor(tensor) for tensor in tensors])


def _put(result: list[Any], positions: Sequence[int], values: Sequence[Any]) -> None:
    for position, value in zip(positions, values, strict=True):
        result[position] = value
