"""The collectives over arrays of MXNet, in the order of MXNet's engine.

Every call returns at once: MXNet starts the operation when the arrays are ready, and whatever uses
its results waits for it. Errors of arguments are raised at once; those of the operation surface as
``MXNetError``, with the name of the exception in its text, where a result is waited for
(``wait_to_read()``, ``asnumpy()``).

Common arguments. ``tensor``: a dense NDArray, uint8, int8, int32, int64, float16, float32 or
float64. ``name``: the same on all ranks; operations of the same name run in the order of their
calls. By default the n-th unnamed operations of a kind belong together. ``priority``: of operations
that are ready the one with the largest is started first. ``process_set``: the ranks that take part;
this process must be a member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from horovod.core.calls import Call, check_splits, exchange, reduction
from horovod.core.compression import LinkFormat
from horovod.core.operations import Adasum, Average, Kind, resolve_op
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.errors import HorovodInternalError
from horovod.mxnet.adapter import make_call, start, start_in_place, start_sized
from horovod.numpy.adapter import NumpyAdapter

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Reduce ``tensor`` over all ranks into a new array.

    Args:
        tensor: any shape, the same on all ranks.
        average: deprecated, use ``op``.
        name: see above.
        priority: see above.
        prescale_factor: multiplies every input before the reduction.
        postscale_factor: multiplies the result.
        process_set: see above.
        op: Average (default), Sum, Min, Max or Product; the same on all ranks.

    Raises:
        AssertionError: ``op`` is Adasum.
        ValueError: an argument is unusable, or ``init`` was not called.
    """
    call = _allreduce(average, op, (prescale_factor, postscale_factor), process_set)
    return start(make_call(call, [tensor], name, priority), [tensor])[0]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    link_format: int = LinkFormat.AS_SET,
) -> Any:
    """Like ``allreduce``, with the result in ``tensor`` itself, which is returned."""
    factors = (prescale_factor, postscale_factor)
    call = _allreduce(average, op, factors, process_set, link_format)
    start_in_place(make_call(call, [tensor], name, priority), [tensor])
    return tensor


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Like ``allreduce`` of every array, as one operation: whole or not at all.

    Ranks give the same arrays in the same order; dtypes and shapes may differ within the group. An
    empty list is returned as it is.
    """
    if not tensors:
        return tensors
    call = _allreduce(average, op, (prescale_factor, postscale_factor), process_set).grouped()
    return start(make_call(call, tensors, name, priority), tensors)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    link_format: int = LinkFormat.AS_SET,
) -> Any:
    """Like ``grouped_allreduce``, with the results in the arrays themselves, which are returned."""
    if not tensors:
        return tensors
    factors = (prescale_factor, postscale_factor)
    call = _allreduce(average, op, factors, process_set, link_format).grouped()
    start_in_place(make_call(call, tensors, name, priority), tensors)
    return tensors


def allgather(
    tensor: Any,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Join all ranks' arrays along the first dimension into a new array.

    Its shape is known when the operation is done; whatever asks for it waits.

    Args:
        tensor: [n, ...]; n may differ between ranks and be 0, the rest not.
        name: see above.
        priority: see above.
        process_set: see above.

    Raises:
        AssertionError: ``tensor`` is no NDArray.
        ValueError: an argument is unusable, or ``init`` was not called.
    """
    call = _allgather([tensor], process_set)
    return start_sized(make_call(call, [tensor], name, priority), [tensor])[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Like ``allgather`` of every array, as one operation; an empty list is returned as it is."""
    if not tensors:
        return tensors
    call = _allgather(tensors, process_set).grouped()
    return start_sized(make_call(call, tensors, name, priority), tensors)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A new array with the values of ``root_rank``.

    Args:
        tensor: any shape, the same on all ranks.
        root_rank: a rank of the world that is in the set; the same on all ranks.
        name: see above.
        priority: see above.
        process_set: see above.

    Raises:
        ValueError: an argument is unusable, or ``init`` was not called.
    """
    call = make_call(exchange(Kind.BROADCAST, process_set, root_rank), [tensor], name, priority)
    return start(call, [tensor])[0]


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Like ``broadcast``, with the result in ``tensor`` itself, which is returned."""
    call = make_call(exchange(Kind.BROADCAST, process_set, root_rank), [tensor], name, priority)
    start_in_place(call, [tensor])
    return tensor


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its part of the first dimension.

    Args:
        tensor: [n, ...]; n may differ between ranks, the rest not.
        splits: int32 NDArray or list: rows for each rank of the set, 0 allowed, n in all at most;
            None: equal parts, where n must be a multiple of the number of ranks.
        name: see above.
        priority: see above.
        process_set: see above.

    Returns:
        The rows received, in rank order, as a new array; its shape is known when the operation is
        done. With ``splits`` a pair of it and of the number of rows from each rank, int32.

    Raises:
        ValueError: an argument is unusable, or ``init`` was not called.
    """
    rows = [] if splits is None else _rows(splits)
    call = make_call(exchange(Kind.ALLTOALL, process_set), [tensor], name, priority)
    received, counts = start_sized(call, [tensor], 1, rows)
    return received if splits is None else (received, counts)


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce over all ranks and keep this rank's part of the rows, as a new array.

    Args:
        tensor: [n, ...], the same shape on all ranks. Every rank gets n // size rows in rank
            order, the first n % size ranks one more.
        op: Average or Sum; the same on all ranks.
        name: see above.
        priority: see above.
        process_set: see above.
        prescale_factor: multiplies every input before the reduction.
        postscale_factor: multiplies the result.

    Raises:
        AssertionError: ``op`` is something else.
        ValueError: another argument is unusable, or ``init`` was not called.
    """
    call = _reducescatter([tensor], op, (prescale_factor, postscale_factor), process_set)
    return start_sized(make_call(call, [tensor], name, priority), [tensor])[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Like ``reducescatter`` of every array, as one operation; an empty list is returned as is."""
    if not tensors:
        return tensors
    call = _reducescatter(tensors, op, (prescale_factor, postscale_factor), process_set).grouped()
    return start_sized(make_call(call, tensors, name, priority), tensors)


def _allreduce(
    average: bool | None,
    op: int | None,
    factors: tuple[float, float],
    process_set: ProcessSet,
    link_format: int = LinkFormat.AS_SET,
) -> Call:
    op = resolve_op(average, op, 4)
    if op == Adasum:
        raise AssertionError("allreduce: MXNet has no Adasum")
    return reduction(Kind.ALLREDUCE, None, op, *factors, process_set, link_format)


def _allgather(arrays: Sequence[Any], process_set: ProcessSet) -> Call:
    if not all(isinstance(array, mx.nd.NDArray) for array in arrays):
        raise AssertionError("allgather: expected an NDArray")
    return exchange(Kind.ALLGATHER, process_set)


def _reducescatter(
    arrays: Sequence[Any], op: int, factors: tuple[float, float], process_set: ProcessSet
) -> Call:
    try:
        call = reduction(Kind.REDUCESCATTER, None, op, *factors, process_set)
    except HorovodInternalError as error:
        raise AssertionError(str(error)) from None
    if any(getattr(array, "ndim", 1) == 0 for array in arrays):
        raise ValueError("reducescatter: an array needs at least one dimension")
    return call


def _rows(splits: Any) -> list[int]:
    if isinstance(splits, mx.nd.NDArray):
        splits = splits.asnumpy()
    return check_splits(NumpyAdapter().split_list(splits))
