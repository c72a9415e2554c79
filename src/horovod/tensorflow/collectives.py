"""The collectives of ``horovod.tensorflow`` over dense tensors: names, arguments, implementation.

``horovod.tensorflow`` adds compression and ``tf.IndexedSlices`` to them. All of them work eagerly,
in ``tf.function`` and in TF1 graphs, and can be differentiated where the mathematics allows it.

Common arguments. ``tensor``: dense, or what ``tf.convert_to_tensor`` makes into one. ``name``: the
same on all ranks; by default the type of the operation, in graphs with the tensor's name; in graphs
made unique, with the scopes it is in unless ``ignore_name_scope``. ``process_set``: the ranks that
take part; this process must be a member.

Common errors, raised when the operation runs:

    tf.errors.InvalidArgumentError      the call cannot be right (dtype, root, splits, name in use)
    tf.errors.FailedPreconditionError   ranks disagree; on every rank, the engine stays usable
    tf.errors.AbortedError              ``shutdown`` was called on this rank meanwhile
    tf.errors.UnknownError              a rank was lost or shut down; only a new ``init`` helps
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.core.calls import Call
from horovod.core.compression import LinkFormat
from horovod.core.operations import Average, Kind
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.arguments import (
    check_rows,
    dense_tensors,
    exchange,
    int32_splits,
    reduction,
    variable_list,
)
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.implementation import implementation
from horovod.tensorflow.names import group_name, name_of, names_of, op_type_of
from horovod.tensorflow.variables import from_wire, to_wire

# ``horovod.tensorflow`` exports these unchanged; ``reductions`` has the others with compression.
__all__ = [
    "allgather",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]


@not_converted
def allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    link_format: int = LinkFormat.AS_SET,
) -> Any:
    """A new tensor: ``tensor`` reduced over all ranks.

    Args:
        tensor: any shape, the same on all ranks; integers, floats or bool (Sum and Max: or; Product
            and Min: and), complex numbers with Sum, Average and Adasum.
        op: Average, Sum, Min, Max, Product, or Adasum for floats; the same on all ranks. Average
            and Sum can be differentiated.
        prescale_factor: multiplies every input before the reduction; rounded to float32.
        postscale_factor: multiplies the result; rounded to float32.
        link_format: how it travels between hosts.

    Raises:
        ValueError: ``op`` is none of these, a factor is no number, or the set is not registered.
    """
    factors = (prescale_factor, postscale_factor)
    call = reduction(Kind.ALLREDUCE, op, *factors, process_set, link_format)
    return _run_one(call, tensor, name, ignore_name_scope)


@not_converted
def allreduce_batch(
    tensors: Sequence[Any],
    names: Sequence[str | None],
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    link_format: int = LinkFormat.AS_SET,
) -> list[Any]:
    """Like ``allreduce`` of every tensor under its own name, in a graph with one node for all.

    The node runs when all tensors are there. Ranks may batch differently; no tensors give none.
    """
    factors = (prescale_factor, postscale_factor)
    call = reduction(Kind.ALLREDUCE, op, *factors, process_set, link_format)
    return _run_batch(call, tensors, names)


@not_converted
def grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    link_format: int = LinkFormat.AS_SET,
    members: Sequence[str] = (),
) -> list[Any]:
    """Each tensor reduced over all ranks, as one operation that is done whole or not at all.

    Args:
        tensors: a list, the same on all ranks; dtypes and shapes may differ within it. An empty one
            is returned as it is.
        members: their names, which say what a low-bit format leaves exact; none: by size only.

    See ``allreduce`` for the rest.
    """
    factors = (prescale_factor, postscale_factor)
    call = reduction(Kind.ALLREDUCE, op, *factors, process_set, link_format)
    return _run_group(call, tensors, name, ignore_name_scope, members)


@not_converted
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A new tensor: all ranks' tensors joined along the first dimension, in rank order.

    Args:
        tensor: [n, ...], any dtype; n may differ between ranks and be 0, the rest not.
    """
    return _run_one(exchange(Kind.ALLGATHER, process_set), tensor, name, ignore_name_scope)


@not_converted
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Each tensor joined over all ranks, as one operation; see ``allgather``."""
    return _run_group(exchange(Kind.ALLGATHER, process_set), tensors, name, ignore_name_scope)


@not_converted
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A new tensor with the values of ``root_rank``.

    Args:
        tensor: any dtype and shape, the same on all ranks.
        root_rank: a rank of the world that is in the set; the same on all ranks.
    """
    call = exchange(Kind.BROADCAST, process_set, root_rank)
    return _run_one(call, tensor, name, ignore_name_scope)


@not_converted
def broadcast_batch(
    tensors: Sequence[Any],
    names: Sequence[str | None],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Like ``broadcast`` of every tensor under its own name, in a graph with one node for all."""
    return _run_batch(exchange(Kind.BROADCAST, process_set, root_rank), tensors, names)


@not_converted
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables with the values of ``root_rank``, and return them.

    In a TF1 graph the variables returned are those after the assignment: run them, or what depends
    on them.

    Args:
        variables: a list, the same on all ranks: all resource variables, or all reference ones.
        root_rank: a rank of the world that is in the set; the same on all ranks.
        name: what the names of the operations begin with.

    Raises:
        ValueError: this is no list of variables, one that mixes both kinds, or one has a dtype that
            cannot be sent.
    """
    listed = variable_list(variables)
    if not listed:
        return []
    prefix, count = "HorovodBroadcastInplace" if name is None else name, len(listed)
    names = [f"{prefix}_{position}of{count}" for position in range(1, count + 1)]
    values = broadcast_batch(list(map(to_wire, listed)), names, root_rank, process_set)
    pairs = zip(listed, values, strict=True)
    assigned = [variable.assign(from_wire(value, variable)) for variable, value in pairs]
    return listed if tf.executing_eagerly() else assigned


@not_converted
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tuple[Any, Any]:
    """Send each rank its part of the first dimension.

    Args:
        tensor: [n, ...], any dtype; n may differ between ranks, the rest not.
        splits: int32 vector or list: rows for each rank of the set, 0 allowed, n in all at most;
            None: equal parts, where n must be a multiple of the number of ranks.

    Returns:
        The rows received, in rank order, and how many came from each rank of the set (int32).
    """
    call = exchange(Kind.ALLTOALL, process_set)
    tensor = tf.convert_to_tensor(tensor)
    splits = None if splits is None else int32_splits(splits)
    name = name_of(op_type_of(call.kind), name, tensor, ignore_name_scope)
    return implementation().alltoall(call, name, tensor, splits)


@not_converted
def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """This rank's rows of the reduced tensor: n // size, on the first n % size ranks one more.

    Args:
        tensor: [n, ...], the same shape and dtype on all ranks.
        op: Average or Sum; the same on all ranks.
        prescale_factor: multiplies every input before the reduction; rounded to float32.
        postscale_factor: multiplies the result; rounded to float32.

    Raises:
        ValueError: in a graph, the tensor is a scalar.
        tf.errors.InvalidArgumentError: another op.
    """
    call = reduction(Kind.REDUCESCATTER, op, prescale_factor, postscale_factor, process_set)
    return _run_one(call, tensor, name, ignore_name_scope)


@not_converted
def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """This rank's rows of each reduced tensor, as one operation; see ``reducescatter``."""
    call = reduction(Kind.REDUCESCATTER, op, prescale_factor, postscale_factor, process_set)
    return _run_group(call, tensors, name, ignore_name_scope)


@not_converted
def join() -> Any:
    """Say that this rank has no more data, and wait until all ranks have said so.

    Until then this rank takes part in what the others submit, with zeros or without rows.

    Returns:
        An int32 scalar: the rank that joined last, the same on all ranks.
    """
    return implementation().join(group_name("HorovodJoin", None))


@not_converted
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks in a process set, as it is when the operation runs: int32 scalar."""
    return implementation().world_number("size", process_set_id, name)


@not_converted
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this process is in the process set when the operation runs, else 0: int32 scalar."""
    return implementation().world_number("included", process_set_id, name)


@not_converted
def local_size_op(name: str | None = None) -> Any:
    """The number of ranks on this host, as it is when the operation runs: int32 scalar."""
    return implementation().world_number("local_size", 0, name)


@not_converted
def rank_op(name: str | None = None) -> Any:
    """The rank of this process, as it is when the operation runs: int32 scalar."""
    return implementation().world_number("rank", 0, name)


@not_converted
def local_rank_op(name: str | None = None) -> Any:
    """This process's rank on its host, as it is when the operation runs: int32 scalar."""
    return implementation().world_number("local_rank", 0, name)


def _run_one(call: Call, tensor: Any, name: str | None, ignore_name_scope: bool) -> Any:
    tensor = tf.convert_to_tensor(tensor)
    check_rows(call, [tensor])
    name = name_of(op_type_of(call.kind), name, tensor, ignore_name_scope)
    return implementation().run(call, [name], [tensor])[0]


def _run_batch(call: Call, tensors: Any, names: Sequence[str | None]) -> list[Any]:
    tensors = dense_tensors(f"{call.title}_batch", tensors)
    if not tensors:
        return []
    return implementation().run(call, names_of(op_type_of(call.kind), names, tensors), tensors)


def _run_group(
    call: Call, tensors: Any, name: str | None, ignore_name_scope: bool, members: Sequence[str] = ()
) -> list[Any]:
    call = call.grouped()
    tensors = dense_tensors(call.prefix, tensors)
    check_rows(call, tensors)
    if not tensors:
        return []
    name = group_name(op_type_of(call.kind, is_group=True), name, ignore_name_scope)
    return implementation().run(call, [name, *members], tensors)
