"""The collectives as TensorFlow's own operations, from the plugin beside this package.

Kernels are asynchronous: a node hands its tensors to the engine and ends when the engine is done,
so no thread of TensorFlow waits, and nodes run in any order. An eager node makes progress itself,
because the caller waits anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import tensorflow as tf

from horovod.core.calls import Call
from horovod.core.gradient_groups import BATCH_BYTES, batches_of
from horovod.core.operations import COLLECTIVES, Kind
from horovod.core.port import rethrow_interrupt
from horovod.core.world import has_spare_cores, is_initialized
from horovod.tensorflow import gradients
from horovod.tensorflow.names import node_name, op_type_of
from horovod.tensorflow.plugin import load_plugin

# Numbered as in bindings/engine_port.h.
WORLD_NUMBERS = {"size": 0, "rank": 1, "local_size": 2, "local_rank": 3, "included": 4}


class NativeOps:
    """``CollectiveOps`` over the plugin.

    Raises:
        ImportError: the plugin does not work with this TensorFlow; the text says why.
    """

    def __init__(self) -> None:
        self._plugin = load_plugin()
        self._eager_token: Any = None  # made when first needed: this may be a TF1 graph
        for kind, row in COLLECTIVES.items():
            if row.gradient_ops:
                tf.RegisterGradient(op_type_of(kind))(_gradient_of(self, kind))

    def run(self, call: Call, names: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """See ``CollectiveOps``."""
        batches = [slice(0, len(tensors))]
        may_divide = call.kind is Kind.ALLREDUCE and not call.is_group
        if may_divide and not tf.executing_eagerly() and is_initialized() and has_spare_cores():
            # Ranks may divide differently, since each tensor is an operation of its own.
            batches = batches_of([_size_bytes(tensor) for tensor in tensors], BATCH_BYTES)
        results: list[Any] = []
        for batch in batches:
            named = names if call.is_group else names[batch]
            results += self._node(call, named, [tensors[batch]])
        return results

    def alltoall(self, call: Call, name: str, tensor: Any, splits: Any | None) -> tuple[Any, Any]:
        """See ``CollectiveOps``."""
        given = 0 if splits is None else splits  # a scalar says that there are none
        received, received_splits = self._node(call, [name], [tensor, given])
        return received, received_splits

    def join(self, name: str) -> Any:
        """See ``CollectiveOps``."""
        with _interrupts_raised():
            return self._plugin.horovod_join(
                is_blocking=tf.executing_eagerly(), name=node_name("HorovodJoin", [name])
            )

    def world_number(self, what: str, process_set: int, name: str | None) -> Any:
        """See ``CollectiveOps``."""
        number = WORLD_NUMBERS[what]
        return self._plugin.horovod_world_number(what=number, process_set_id=process_set, name=name)

    def _node(self, call: Call, names: Sequence[str], inputs: list[Any]) -> Any:
        """Make a node, or run one."""
        operation = getattr(self._plugin, f"horovod_{call.title}")
        attributes = {
            attribute: getattr(call, field) for attribute, field in _attributes(call.kind)
        }
        with _interrupts_raised():
            return operation(
                *inputs,
                self._token(),
                names=names,
                is_blocking=tf.executing_eagerly(),
                name=node_name(op_type_of(call.kind), names, call.is_group),
                **attributes,
            )

    def _token(self) -> Any:
        """An input that keeps a node from being folded into a constant; one in each graph."""
        if tf.executing_eagerly():
            if self._eager_token is None:
                self._eager_token = tf.constant(0)
            return self._eager_token
        graph = tf.compat.v1.get_default_graph()
        token = getattr(graph, "_horovod_token", None)
        if token is None:
            # Outside of the control dependencies and the loops around this call.
            with graph.control_dependencies(None):
                token = graph._horovod_token = self._plugin.horovod_token()
        return token


def _size_bytes(tensor: Any) -> int:
    """0 where a dimension is not known while the graph is built."""
    dims = tensor.shape.as_list() if tensor.shape.rank is not None else [None]
    return 0 if None in dims else math.prod(dims) * tensor.dtype.size


@contextmanager
def _interrupts_raised() -> Iterator[None]:
    """Raise the exception of a signal handler that ended a node's wait."""
    try:
        yield
    except tf.errors.CancelledError:
        rethrow_interrupt()
        raise


def _gradient_of(ops: NativeOps, kind: Kind) -> Callable[..., list[Any]]:
    """A gradient as TensorFlow registers it: of every input of the node; the token's is None."""

    def of_node(node: Any, *grads: Any) -> list[Any]:
        call = Call(kind, **{field: node.get_attr(name) for name, field in _attributes(kind)})
        names = [name.decode() for name in node.get_attr("names")]
        if kind is Kind.ALLTOALL:
            exchanged = (grads[0], node.inputs[0], node.outputs[1])
            return [gradients.of_alltoall(ops, call, names[0], *exchanged), None, None]
        return [*gradients.of_call(ops, call, names, grads, node.inputs[:-1]), None]

    return of_node


_ATTRIBUTES = {"op": "reduce_op", "prescale": "prescale_factor", "postscale": "postscale_factor"}


@cache
def _attributes(kind: Kind) -> list[tuple[str, str]]:
    """The attributes of a node with the fields of ``Call`` that they hold."""
    row = COLLECTIVES[kind]
    fields = [field for field in row.arguments if field != "splits"]
    fields += ["is_group"] if row.is_grouped else []
    named = [(_ATTRIBUTES.get(field, field), field) for field in fields]
    return [*named, ("process_set_id", "process_set")]
