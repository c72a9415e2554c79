"""The public collectives with compression, rows and deprecated arguments.

Dense tensors are compressed, given to ``collectives`` and decompressed. ``tf.IndexedSlices`` are
gathered. All work eagerly, in ``tf.function`` and in TF1 sessions, and have gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.core.compression import (
    check_not_on_links,
    compress_all,
    decompress_all,
    link_format_of,
)
from horovod.core.operations import Adasum, Average, Sum, resolve_op
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import collectives
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.run_time import placed_on, set_size

__all__ = ["allreduce", "alltoall", "grouped_allreduce", "grouped_reducescatter", "reducescatter"]


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
        if not values.dtype.is_floating:  # their dtype may be too small for the size
            values = tf.truediv(values, tf.ones([], values.dtype))
        values /= set_size(process_set, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"


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
    factors = (prescale_factor, postscale_factor)
    options = (name, op, *factors, ignore_name_scope, process_set, link_format_of(compression))
    with placed_on(device_dense):
        reduced = collectives.allreduce(packed, *options)
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
    if any(map(is_sparse, result)):
        check_sparse(op, prescale_factor, postscale_factor)
    factors = (prescale_factor, postscale_factor)
    options = (name, op, *factors, ignore_name_scope, process_set, link_format_of(compression))
    reduce_at(
        result,
        range(len(result)),
        (device_dense, device_sparse, compression),
        lambda packed, _: collectives.grouped_allreduce(packed, *options),
        lambda rows, _: grouped_allreduce_sparse(rows, name, op, process_set, ignore_name_scope),
    )
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
    check_not_on_links(compression, "reducescatter")
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
    check_not_on_links(compression, "grouped_reducescatter")
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


Reduce = Callable[[list[Any], Sequence[int]], list[Any]]


def reduce_at(
    result: list[Any],
    positions: Sequence[int],
    transfer: tuple[str, str, Any],
    reduce_dense: Reduce,
    reduce_rows: Reduce,
) -> None:
    """Reduce the tensors at ``positions`` in place.

    Args:
        result: dense tensors and rows.
        positions: some of them.
        transfer: the device for operations on dense ones, on rows; the compression.
        reduce_dense, reduce_rows: take packed ones, or rows, and their positions.
    """
    device_dense, device_sparse, compression = transfer
    sparse = [position for position in positions if is_sparse(result[position])]
    dense = [position for position in positions if position not in sparse]
    reduced: list[Any] = []
    if dense:
        packed, contexts = _compress([result[position] for position in dense], compression)
        with placed_on(device_dense):
            packed = reduce_dense(packed, dense)
        reduced += decompress_all(compression, packed, contexts)
    if sparse:
        with placed_on(device_sparse):
            reduced += reduce_rows([result[position] for position in sparse], sparse)
    for position, tensor in zip([*dense, *sparse], reduced, strict=True):
        result[position] = tensor
