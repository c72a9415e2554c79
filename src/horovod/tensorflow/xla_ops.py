"""The collectives in functions that XLA compiles for the CPU (``tf.function(jit_compile=True)``).

XLA knows the shapes of all results before anything runs. So every rank has to give as many rows to
an allgather or an alltoall as this one does while the function is traced, and the same splits; a
call whose result has another shape when it runs is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.core.operations import Kind
from horovod.core.process_sets import ids_and_ranks
from horovod.core.world import rank
from horovod.tensorflow import gradients
from horovod.tensorflow.names import derived
from horovod.tensorflow.native_ops import WORLD_NUMBERS
from horovod.tensorflow.xla_calls import Call, run_call, run_world_number, static_shape
from horovod.tensorflow.xla_plugin import open_for_xla

__all__ = ["XlaOps"]


class XlaOps:
    """``CollectiveOps`` as calls of compiled programs.

    Raises:
        ImportError: the plugin does not work with this TensorFlow's XLA; the text says why.
    """

    def __init__(self) -> None:
        open_for_xla()

    def allreduce(
        self,
        tensors: Sequence[Any],
        names: Sequence[str],
        op: int,
        prescale: float,
        postscale: float,
        process_set: int,
        is_group: bool,
    ) -> list[Any]:
        """See ``CollectiveOps``."""
        call = Call(Kind.ALLREDUCE, names, process_set, is_group, op, prescale, postscale)

        def gradient(*grads: Any) -> list[Any]:
            options = (op, prescale, postscale, process_set, is_group)
            return gradients.of_allreduce(self, grads, names, *options)

        return _differentiable(call, tensors, [None] * len(tensors), gradient)

    def allgather(
        self, tensors: Sequence[Any], names: Sequence[str], process_set: int, is_group: bool
    ) -> list[Any]:
        """See ``CollectiveOps``."""
        size, _ = _place_in(process_set)
        call = Call(Kind.ALLGATHER, names, process_set, is_group, size=size)

        def gradient(*grads: Any) -> list[Any]:
            args = (self, grads, tensors, names, process_set, is_group)
            return gradients.of_even_allgather(*args)

        rows = [size * _rows_of(call, tensor) for tensor in tensors]
        return _differentiable(call, tensors, rows, gradient)

    def broadcast(
        self, tensors: Sequence[Any], names: Sequence[str], root_rank: int, process_set: int
    ) -> list[Any]:
        """See ``CollectiveOps``."""
        call = Call(Kind.BROADCAST, names, process_set, root_rank=root_rank)

        def gradient(*grads: Any) -> list[Any]:
            return gradients.of_broadcast(self, grads, names, root_rank, process_set)

        return _differentiable(call, tensors, [None] * len(tensors), gradient)

    def alltoall(
        self, tensor: Any, splits: Any | None, name: str, process_set: int
    ) -> tuple[Any, Any]:
        """See ``CollectiveOps``."""
        size, place = _place_in(process_set)
        given = _static_splits(name, splits)
        call = Call(Kind.ALLTOALL, [name], process_set, size=size, splits=given)
        rows = _rows_of(call, tensor)
        received = size * given[place] if len(given) == size else rows
        unsent = rows - sum(given) if given else 0

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def exchange(tensor: Any) -> Any:
            def gradient(grad: Any, _: Any) -> Any:
                back = [given[place]] * size if given else []
                named = derived([name], "grad")
                call = Call(Kind.ALLTOALL, named, process_set, size=size, splits=back)
                returned, _ = run_call(call, [grad], [rows - unsent], [size])
                return tf.pad(returned, [[0, unsent], *[[0, 0]] * (tensor.shape.rank - 1)])

            return tuple(run_call(call, [tensor], [received], [size])), gradient

        output, received_splits = exchange(tensor)
        return output, received_splits

    def reducescatter(
        self,
        tensors: Sequence[Any],
        names: Sequence[str],
        op: int,
        prescale: float,
        postscale: float,
        process_set: int,
        is_group: bool,
    ) -> list[Any]:
        """See ``CollectiveOps``."""
        size, place = _place_in(process_set)
        options = (op, prescale, postscale)
        call = Call(Kind.REDUCESCATTER, names, process_set, is_group, *options, size=size)
        all_rows = [_rows_of(call, tensor) for tensor in tensors]

        def gradient(*grads: Any) -> list[Any]:
            pairs = zip(all_rows, grads, strict=True)
            ops = _Joining([rows for rows, grad in pairs if grad is not None], size)
            return gradients.of_reducescatter(ops, grads, names, *options, process_set, is_group)

        rows = [count // size + (place < count % size) for count in all_rows]
        return _differentiable(call, tensors, rows, gradient)

    def join(self, name: str) -> Any:
        """See ``CollectiveOps``."""
        return run_call(Call(Kind.JOIN, []), [], [], [])[0]

    def world_number(self, what: str, process_set: int, name: str | None) -> Any:
        """See ``CollectiveOps``."""
        return run_world_number(WORLD_NUMBERS[what], process_set, name)


class _Joining(XlaOps):
    """Allgathers of what a reducescatter has scattered: all ranks' rows are known together."""

    def __init__(self, rows: Sequence[int], size: int) -> None:
        super().__init__()
        self._rows, self._size = rows, size

    def allgather(
        self, tensors: Sequence[Any], names: Sequence[str], process_set: int, is_group: bool
    ) -> list[Any]:
        """See ``CollectiveOps``; ``tensors``: of all that was scattered, in its order."""
        call = Call(Kind.ALLGATHER, names, process_set, is_group, size=self._size)
        return run_call(call, tensors, self._rows)


def _differentiable(
    call: Call,
    tensors: Sequence[Any],
    rows: Sequence[int | None],
    gradient: Callable[..., list[Any]],
) -> list[Any]:
    """A call whose results have the dtypes of its inputs, with this gradient."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def node(*inputs: Any) -> Any:
        return run_call(call, inputs, rows), gradient

    return list(node(*tensors))


def _place_in(process_set: int) -> tuple[int, int]:
    """The set's size and this rank's place in it, or 0 where it is no member."""
    members = ids_and_ranks()[process_set]
    return len(members), members.index(rank()) if rank() in members else 0


def _rows_of(call: Call, tensor: Any) -> int:
    shape = static_shape(call, tensor)
    if not shape:
        raise ValueError(
            f"{call.kind.name.lower()} '{call.names[0]}': a scalar was given, expected rows"
        )
    return shape[0]


def _static_splits(name: str, splits: Any | None) -> list[int]:
    if splits is None:
        return []
    values = tf.get_static_value(splits)
    if values is None:
        raise ValueError(
            f"alltoall '{name}': splits are not known while the function is traced; in a function "
            "that XLA compiles they have to be constants"
        )
    return [int(value) for value in values.reshape(-1)]
