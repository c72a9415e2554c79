"""The collectives in functions that XLA compiles for the CPU (``tf.function(jit_compile=True)``).

XLA knows the shapes of all results before anything runs. So every rank has to give as many rows to
an allgather or an alltoall as this one does while the function is traced, and the same splits; a
call whose result has another shape when it runs is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.core.calls import Call
from horovod.core.operations import Kind, Result
from horovod.core.process_sets import ids_and_ranks
from horovod.core.world import rank
from horovod.tensorflow import gradients
from horovod.tensorflow.names import derived
from horovod.tensorflow.native_ops import WORLD_NUMBERS
from horovod.tensorflow.xla_calls import XlaCall, run_call, run_world_number, static_shape
from horovod.tensorflow.xla_plugin import open_for_xla


class XlaOps:
    """``CollectiveOps`` as calls of compiled programs.

    Raises:
        ImportError: the plugin does not work with this TensorFlow's XLA; the text says why.
    """

    def __init__(self) -> None:
        open_for_xla()

    def run(self, call: Call, names: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """See ``CollectiveOps``."""
        size, rows = 0, []
        if not call.keeps_shape:
            size, place = _place_in(call.process_set)
            rows = [_rows_of(call, names, tensor) for tensor in tensors]
        result_rows: list[int | None] = [None] * len(tensors)
        if call.row.result is Result.ALL_ROWS:
            result_rows = [size * count for count in rows]
        elif call.row.result is Result.OWN_ROWS:
            result_rows = [count // size + (place < count % size) for count in rows]

        def gradient(*grads: Any) -> list[Any]:
            ops, is_even = self, call.kind is Kind.ALLGATHER
            if call.kind is Kind.REDUCESCATTER:
                pairs = zip(rows, grads, strict=True)
                ops = _Joining([count for count, grad in pairs if grad is not None], size)
            return gradients.of_call(ops, call, names, grads, tensors, is_even)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def node(*inputs: Any) -> Any:
            return run_call(XlaCall(call, names, size), inputs, result_rows), gradient

        return list(node(*tensors))

    def alltoall(self, call: Call, name: str, tensor: Any, splits: Any | None) -> tuple[Any, Any]:
        """See ``CollectiveOps``."""
        size, place = _place_in(call.process_set)
        given = _static_splits(name, splits)
        rows = _rows_of(call, [name], tensor)
        received = size * given[place] if len(given) == size else rows
        unsent = rows - sum(given) if given else 0

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def exchange(tensor: Any) -> Any:
            def gradient(grad: Any, _: Any) -> Any:
                back = [given[place]] * size if given else []
                sent_back = XlaCall(call, derived([name], "grad"), size, back)
                returned, _ = run_call(sent_back, [grad], [rows - unsent], [size])
                return tf.pad(returned, [[0, unsent], *[[0, 0]] * (tensor.shape.rank - 1)])

            sent = XlaCall(call, [name], size, given)
            return tuple(run_call(sent, [tensor], [received], [size])), gradient

        output, received_splits = exchange(tensor)
        return output, received_splits

    def join(self, name: str) -> Any:
        """See ``CollectiveOps``."""
        return run_call(XlaCall(Call(Kind.JOIN), []), [], [], [])[0]

    def world_number(self, what: str, process_set: int, name: str | None) -> Any:
        """See ``CollectiveOps``."""
        return run_world_number(WORLD_NUMBERS[what], process_set, name)


class _Joining(XlaOps):
    """Allgathers of what a reducescatter has scattered: all ranks' rows are known together."""

    def __init__(self, rows: Sequence[int], size: int) -> None:
        super().__init__()
        self._rows, self._size = rows, size

    def run(self, call: Call, names: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """See ``CollectiveOps``; ``tensors``: of all that was scattered, in its order."""
        return run_call(XlaCall(call, names, self._size), tensors, self._rows)


def _place_in(process_set: int) -> tuple[int, int]:
    """The set's size and this rank's place in it, or 0 where it is no member."""
    members = ids_and_ranks()[process_set]
    return len(members), members.index(rank()) if rank() in members else 0


def _rows_of(call: Call, names: Sequence[str], tensor: Any) -> int:
    shape = static_shape(call, names, tensor)
    if not shape:
        raise ValueError(f"{call.title} '{names[0]}': a scalar was given, expected rows")
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
