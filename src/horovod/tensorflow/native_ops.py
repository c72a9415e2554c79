"""The collectives as TensorFlow's own operations, from the plugin beside this package.

Kernels are asynchronous: a node hands its tensors to the engine and ends when the engine is done,
so no thread of TensorFlow's waits and nodes run in any order. Run eagerly, where the caller waits
anyway, a node makes progress itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from horovod.core.world import rethrow_interrupt
from horovod.tensorflow import gradients
from horovod.tensorflow.batches import batches_of
from horovod.tensorflow.names import node_name
from horovod.tensorflow.plugin import load_plugin

__all__ = ["WORLD_NUMBERS", "NativeOps"]

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
        for op_type, gradient in _GRADIENTS.items():
            tf.RegisterGradient(op_type)(_registered(self, gradient))

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
        reduced: list[Any] = []
        single = [slice(0, len(tensors))]
        for batch in single if is_group or tf.executing_eagerly() else batches_of(tensors):
            reduced += self._run(
                "allreduce",
                [tensors[batch]],
                names if is_group else names[batch],
                is_group,
                is_group=is_group,
                reduce_op=op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                process_set_id=process_set,
            )
        return reduced

    def allgather(
        self, tensors: Sequence[Any], names: Sequence[str], process_set: int, is_group: bool
    ) -> list[Any]:
        """See ``CollectiveOps``."""
        gathered: list[Any] = self._run(
            "allgather", [tensors], names, is_group, is_group=is_group, process_set_id=process_set
        )
        return gathered

    def broadcast(
        self, tensors: Sequence[Any], names: Sequence[str], root_rank: int, process_set: int
    ) -> list[Any]:
        """See ``CollectiveOps``."""
        received: list[Any] = self._run(
            "broadcast", [tensors], names, root_rank=root_rank, process_set_id=process_set
        )
        return received

    def alltoall(
        self, tensor: Any, splits: Any | None, name: str, process_set: int
    ) -> tuple[Any, Any]:
        """See ``CollectiveOps``."""
        given = 0 if splits is None else splits  # a scalar says that there are none
        received, received_splits = self._run(
            "alltoall", [tensor, given], [name], process_set_id=process_set
        )
        return received, received_splits

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
        reduced: list[Any] = self._run(
            "reducescatter",
            [tensors],
            names,
            is_group,
            is_group=is_group,
            reduce_op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set_id=process_set,
        )
        return reduced

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

    def _run(
        self,
        kind: str,
        inputs: list[Any],
        names: Sequence[str],
        is_one: bool = False,
        **attributes: Any,
    ) -> Any:
        """Make a node, or run one; ``is_one`` says that it is one operation on all its tensors."""
        operation = getattr(self._plugin, f"horovod_{kind}")
        with _interrupts_raised():
            return operation(
                *inputs,
                self._token(),
                names=names,
                is_blocking=tf.executing_eagerly(),
                name=node_name(f"Horovod{kind.capitalize()}", names, is_one),
                **attributes,
            )

    def _token(self) -> Any:
        """What keeps a node from being folded into a constant; one in each graph."""
        if tf.executing_eagerly():
            if self._eager_token is None:
                self._eager_token = tf.constant(0)
            return self._eager_token
        graph = tf.compat.v1.get_default_graph()
        token = getattr(graph, "_horovod_token", None)
        if token is None:
            # Without the control dependencies and the loops that this call may stand in.
            with graph.control_dependencies(None):
                token = graph._horovod_token = self._plugin.horovod_token()
        return token


@contextmanager
def _interrupts_raised() -> Iterator[None]:
    """Raise what a signal handler raised while a node waited, for example KeyboardInterrupt."""
    try:
        yield
    except tf.errors.CancelledError:
        rethrow_interrupt()
        raise


def _registered(ops: NativeOps, gradient: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """A gradient as TensorFlow registers it: of every input of the node, the token's is None."""

    def of_node(node: Any, *grads: Any) -> list[Any]:
        return [*gradient(ops, node, grads), None]

    return of_node


def _allreduce_gradient(ops: NativeOps, node: Any, grads: Sequence[Any]) -> list[Any]:
    return gradients.of_allreduce(ops, grads, _names(node), *_reduction(node), _is_group(node))


def _reducescatter_gradient(ops: NativeOps, node: Any, grads: Sequence[Any]) -> list[Any]:
    return gradients.of_reducescatter(ops, grads, _names(node), *_reduction(node), _is_group(node))


def _allgather_gradient(ops: NativeOps, node: Any, grads: Sequence[Any]) -> list[Any]:
    tensors = node.inputs[:-1]
    names, process_set = _names(node), node.get_attr("process_set_id")
    return gradients.of_allgather(ops, grads, tensors, names, process_set, _is_group(node))


def _broadcast_gradient(ops: NativeOps, node: Any, grads: Sequence[Any]) -> list[Any]:
    root_rank, process_set = node.get_attr("root_rank"), node.get_attr("process_set_id")
    return gradients.of_broadcast(ops, grads, _names(node), root_rank, process_set)


def _alltoall_gradient(ops: NativeOps, node: Any, grads: Sequence[Any]) -> list[Any]:
    (name,), process_set = _names(node), node.get_attr("process_set_id")
    tensor, received_splits = node.inputs[0], node.outputs[1]
    of_tensor = gradients.of_alltoall(ops, grads[0], tensor, received_splits, name, process_set)
    return [of_tensor, None]


_GRADIENTS: dict[str, Callable[[NativeOps, Any, Sequence[Any]], list[Any]]] = {
    "HorovodAllreduce": _allreduce_gradient,
    "HorovodAllgather": _allgather_gradient,
    "HorovodBroadcast": _broadcast_gradient,
    "HorovodAlltoall": _alltoall_gradient,
    "HorovodReducescatter": _reducescatter_gradient,
}


def _names(node: Any) -> list[str]:
    return [name.decode() for name in node.get_attr("names")]


def _is_group(node: Any) -> bool:
    is_group: bool = node.get_attr("is_group")
    return is_group


def _reduction(node: Any) -> tuple[int, float, float, int]:
    prescale, postscale = node.get_attr("prescale_factor"), node.get_attr("postscale_factor")
    return node.get_attr("reduce_op"), prescale, postscale, node.get_attr("process_set_id")
