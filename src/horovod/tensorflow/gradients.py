"""The gradients of the collectives, which are collectives on the same process set.

Plain functions over an implementation of ``CollectiveOps``; the native ops register them by
operation type, the others through ``tf.custom_gradient``. The backward pass has to reach an
operation on every rank, as the forward pass did. A gradient that is None, as of an integer or of an
unused result, stays None and takes part in nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from horovod.core.calls import Call, check_gradient
from horovod.core.operations import Average, Kind, Sum
from horovod.tensorflow.names import derived


class CollectiveOps(Protocol):
    """The collectives over dense tensors, under names that are final; it has three implementations.

    ``collectives`` decides names, checks arguments and calls the implementation that this process
    uses: ``native_ops`` (the plugin's asynchronous kernels) or ``python_ops`` (slower, for every
    TensorFlow). Both work eagerly, in ``tf.function`` and in TF1 graphs. Functions for XLA get
    ``xla_ops``. The results of all are differentiable with the mathematics here.

    Errors, when the operation runs: ``tf.errors.InvalidArgumentError`` for a mistake of this rank,
    ``FailedPreconditionError`` when ranks disagree, ``AbortedError`` after ``shutdown`` on
    this rank, ``UnknownError`` when a rank was lost. The text is the engine's.
    """

    def run(self, call: Call, names: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """A collective, except alltoall; returns a result for each tensor.

        Args:
            call: its factors are what float32 can hold.
            names: of a group, which runs whole or not at all, and then of its tensors, if known;
                otherwise one name per tensor, each an operation of its own, and all of them started
                by one graph node once its inputs are there (a *batch*).
            tensors: dense, at least one.
        """

    def alltoall(self, call: Call, name: str, tensor: Any, splits: Any | None) -> tuple[Any, Any]:
        """The rows meant for this rank, and how many came from each rank of the set.

        ``splits``: an int32 tensor, one entry per rank of the set; None for equal parts. The second
        result is an int32 vector, also then.
        """

    def join(self, name: str) -> Any:
        """Wait until all ranks have joined: int32 scalar, the rank that was last."""

    def world_number(self, what: str, process_set: int, name: str | None) -> Any:
        """A number of the world as it is when the node runs: int32 scalar.

        ``what``: "size" and "rank" of the process set (number 0: of the world; the rank of a
        process that is no member is -1), "local_size", "local_rank", or "included": 1 for members,
        else 0.
        """


class _Present(NamedTuple):
    """The gradients that are not None, the inputs they belong to, and the forward pass's names."""

    grads: list[Any]
    tensors: list[Any]
    names: Sequence[str]


def of_call(
    ops: CollectiveOps,
    call: Call,
    names: Sequence[str],
    grads: Sequence[Any],
    tensors: Sequence[Any],
    has_parts: bool = False,
) -> list[Any]:
    """The gradients of the inputs of any collective except alltoall.

    Args:
        ops: what runs the backward pass.
        call, names, tensors: of the forward pass.
        grads: of its results; may be None.
        has_parts: an allgather joined what a reducescatter would give the ranks, or as many rows
            of each; shapes are static.

    Raises:
        NotImplementedError: the reduce op is not linear.
    """
    check_gradient(call.kind, call.op, "use tf.stop_gradient on the tensor")
    positions = [position for position, grad in enumerate(grads) if grad is not None]
    result: list[Any] = [None] * len(grads)
    if not positions:
        return result
    present = _Present(
        [tf.convert_to_tensor(grads[position]) for position in positions],
        [tensors[position] for position in positions],
        names[:1] if call.is_group else [names[position] for position in positions],
    )
    of_kind = _of_joined_parts if has_parts else _OF_KINDS[call.kind]
    for position, grad in zip(positions, of_kind(ops, call, present), strict=True):
        result[position] = grad
    return result


def of_alltoall(
    ops: CollectiveOps, call: Call, name: str, grad: Any, tensor: Any, received_splits: Any
) -> Any:
    """The gradients of the rows, sent back where they came from; zeros for rows that stayed."""
    if grad is None:
        return None
    (named,) = derived([name], "grad")
    back, _ = ops.alltoall(call, named, tf.convert_to_tensor(grad), received_splits)
    shape = tf.shape(tensor)
    unsent = shape[:1] - tf.shape(back)[:1]
    return tf.concat([back, tf.zeros(tf.concat([unsent, shape[1:]], 0), back.dtype)], 0)


def _of_allreduce(ops: CollectiveOps, call: Call, present: _Present) -> list[Any]:
    """The gradients of all ranks, reduced with the same op and factors."""
    return ops.run(call, derived(present.names, "grad"), present.grads)


def _of_allgather(ops: CollectiveOps, call: Call, present: _Present) -> list[Any]:
    """This rank's rows of the average of all ranks' gradients."""
    rows = [tf.shape(tensor)[:1] for tensor in present.tensors]
    rows_of_ranks = ops.run(call, derived(present.names, "rows"), rows)
    reduced = _average(ops, call, present)
    position = ops.world_number("rank", call.process_set, None)
    begins = [tf.reduce_sum(counts[:position]) for counts in rows_of_ranks]
    cut = zip(reduced, begins, rows, strict=True)
    return [grad[begin : begin + count[0]] for grad, begin, count in cut]


def _of_joined_parts(ops: CollectiveOps, call: Call, present: _Present) -> list[Any]:
    """``_of_allgather`` where the numbers of rows follow from their sum, and shapes are static."""
    shapes = [tensor.shape for tensor in present.tensors]
    reduced = _average(ops, call, present)
    place = ops.world_number("rank", call.process_set, None)
    size = ops.world_number("size", call.process_set, None)
    result = []
    for grad, shape in zip(reduced, shapes, strict=True):
        rows = grad.shape[0]
        begin = place * (rows // size) + tf.minimum(place, rows % size)
        result.append(tf.slice(grad, [begin, *[0] * (shape.rank - 1)], shape))
    return result


def _of_broadcast(ops: CollectiveOps, call: Call, present: _Present) -> list[Any]:
    """On the root the average of all ranks' gradients, zeros elsewhere."""
    reduced = _average(ops, call, present)
    is_root = tf.equal(ops.world_number("rank", 0, None), call.root_rank)
    return [tf.where(is_root, grad, tf.zeros_like(grad)) for grad in reduced]


def _of_reducescatter(ops: CollectiveOps, call: Call, present: _Present) -> list[Any]:
    """The gradients of all ranks joined, times the factors, and for Sum times the set's size."""
    joining = Call(Kind.ALLGATHER, call.process_set, is_group=call.is_group)
    joined = ops.run(joining, derived(present.names, "grad"), present.grads)
    factor = tf.constant(call.prescale * call.postscale, tf.float64)
    if call.op == Sum:
        factor *= tf.cast(ops.world_number("size", call.process_set, None), tf.float64)
    return [grad * tf.cast(factor, grad.dtype) for grad in joined]


_OF_KINDS: dict[Kind, Callable[[CollectiveOps, Call, _Present], list[Any]]] = {
    Kind.ALLREDUCE: _of_allreduce,
    Kind.ALLGATHER: _of_allgather,
    Kind.BROADCAST: _of_broadcast,
    Kind.REDUCESCATTER: _of_reducescatter,
}


def _average(ops: CollectiveOps, call: Call, present: _Present) -> list[Any]:
    averaging = Call(Kind.ALLREDUCE, call.process_set, Average, is_group=call.is_group)
    return ops.run(averaging, derived(present.names, "grad"), present.grads)
