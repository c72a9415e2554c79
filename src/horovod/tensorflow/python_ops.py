"""The collectives as Python operations: slower than the native ones, and right in every TensorFlow.

Eagerly the engine gets the tensors' memory at once. In a graph one stateful ``tf.numpy_function``
starts what it was given and waits for it. Such nodes block a thread of TensorFlow's, so those of a
graph run one after the other in the order of its construction, which has to be the same on all
ranks. TensorFlow knows two classes of what a Python node raises: ``InvalidArgumentError`` for a
``ValueError``, and ``UnknownError`` for all else, also where ranks disagree; its text has the
engine's class and sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import tensorflow as tf

from horovod import _native
from horovod.core import world
from horovod.core.operations import Kind
from horovod.core.process_sets import ids_and_ranks
from horovod.errors import HorovodInternalError
from horovod.tensorflow import gradients
from horovod.tensorflow.arrays import Arrays, run_alltoall, run_join, run_many
from horovod.tensorflow.names import node_name
from horovod.tensorflow.util import engine_errors_as_tf_errors

__all__ = ["PythonOps"]

# What a graph's last collective was, by chain: the next one of the chain waits for it. Broadcasts
# are a chain of their own, since a TF1 script runs the one that hands out the first values before
# it can run, or feed, a training step.
_last_nodes: WeakKeyDictionary[Any, dict[str, ref[Any]]] = WeakKeyDictionary()


class PythonOps:
    """``CollectiveOps`` over the engine's Python interface."""

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
        operation = _native.Operation(Kind.ALLREDUCE, op, 0, prescale, postscale, process_set)
        options = (op, prescale, postscale, process_set, is_group)

        def run(arrays: Arrays) -> Arrays:
            return run_many(operation, names, arrays, is_group, keeps_shape=True)

        def gradient(*grads: Any) -> list[Any]:
            return gradients.of_allreduce(self, grads, names, *options)

        return _differentiable(
            node_name("HorovodAllreduce", names, is_group),
            run,
            tensors,
            _shapes_of(tensors),
            gradient,
        )

    def allgather(
        self, tensors: Sequence[Any], names: Sequence[str], process_set: int, is_group: bool
    ) -> list[Any]:
        """See ``CollectiveOps``."""
        operation = _native.Operation(Kind.ALLGATHER, process_set=process_set)

        def run(arrays: Arrays) -> Arrays:
            return run_many(operation, names, arrays, is_group, keeps_shape=False)

        def gradient(*grads: Any) -> list[Any]:
            return gradients.of_allgather(self, grads, tensors, names, process_set, is_group)

        return _differentiable(
            node_name("HorovodAllgather", names, is_group),
            run,
            tensors,
            _other_rows(tensors),
            gradient,
        )

    def broadcast(
        self, tensors: Sequence[Any], names: Sequence[str], root_rank: int, process_set: int
    ) -> list[Any]:
        """See ``CollectiveOps``."""
        operation = _native.Operation(Kind.BROADCAST, root=root_rank, process_set=process_set)

        def run(arrays: Arrays) -> Arrays:
            return run_many(operation, names, arrays, False, keeps_shape=True)

        def gradient(*grads: Any) -> list[Any]:
            return gradients.of_broadcast(self, grads, names, root_rank, process_set)

        name = node_name("HorovodBroadcast", names)
        shapes = _shapes_of(tensors)
        return _differentiable(name, run, tensors, shapes, gradient, chain="broadcast")

    def alltoall(
        self, tensor: Any, splits: Any | None, name: str, process_set: int
    ) -> tuple[Any, Any]:
        """See ``CollectiveOps``."""
        operation = _native.Operation(Kind.ALLTOALL, process_set=process_set)

        def run(arrays: Arrays) -> Arrays:
            return run_alltoall(operation, name, *arrays)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def exchange(tensor: Any) -> Any:
            inputs = [tensor] if splits is None else [tensor, splits]
            dtypes = [tensor.dtype, tf.int32]
            shapes = [*_other_rows([tensor]), tf.TensorShape([None])]
            output, received = _node(f"{name}/", run, inputs, dtypes, shapes)

            def gradient(grad: Any, _: Any) -> Any:
                args = (self, grad, tensor, received, name, process_set)
                return gradients.of_alltoall(*args)

            return (output, received), gradient

        output, received = exchange(tensor)
        return output, received

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
        operation = _native.Operation(Kind.REDUCESCATTER, op, 0, prescale, postscale, process_set)
        options = (op, prescale, postscale, process_set, is_group)

        def run(arrays: Arrays) -> Arrays:
            return run_many(operation, names, arrays, is_group, keeps_shape=False)

        def gradient(*grads: Any) -> list[Any]:
            return gradients.of_reducescatter(self, grads, names, *options)

        return _differentiable(
            node_name("HorovodReducescatter", names, is_group),
            run,
            tensors,
            _other_rows(tensors),
            gradient,
        )

    def join(self, name: str) -> Any:
        """See ``CollectiveOps``."""

        def run(_: Arrays) -> Arrays:
            return [run_join()]

        return _node(f"{name}/", run, [], [tf.int32], [tf.TensorShape([])])[0]

    def world_number(self, what: str, process_set: int, name: str | None) -> Any:
        """See ``CollectiveOps``."""

        def run(_: Arrays) -> Arrays:
            return [np.array(_world_number(what, process_set), np.int32)]

        if tf.executing_eagerly():
            return _eager(run, [])[0]
        found = tf.numpy_function(lambda: run([])[0], [], tf.int32, name=name)
        found.set_shape([])
        return found


def _differentiable(
    name: str,
    run: Callable[[Arrays], Arrays],
    tensors: Sequence[Any],
    shapes: list[tf.TensorShape],
    gradient: Callable[..., list[Any]],
    chain: str = "",
) -> list[Any]:
    """A node whose results have the dtypes of its inputs, with this gradient."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def node(*inputs: Any) -> Any:
        dtypes = [tensor.dtype for tensor in inputs]
        return _node(name, run, inputs, dtypes, shapes, chain), gradient

    return list(node(*tensors))


def _node(
    name: str,
    run: Callable[[Arrays], Arrays],
    tensors: Sequence[Any],
    dtypes: Sequence[tf.DType],
    shapes: Sequence[tf.TensorShape],
    chain: str = "",
) -> list[Any]:
    """Run now, or put a node into the graph that runs after the previous one of its chain."""
    if tf.executing_eagerly():
        return _eager(run, tensors)

    def call(*inputs: Any) -> Arrays:
        try:
            return run([np.asarray(value) for value in inputs])
        except HorovodInternalError as error:
            world.keep_failure(error)  # TensorFlow passes on no more than its text
            raise

    graph = tf.compat.v1.get_default_graph()
    with graph.control_dependencies(_previous(graph, chain)):
        results = tf.numpy_function(call, list(tensors), list(dtypes), name=name)
    _last_nodes.setdefault(graph, {})[chain] = ref(results[0].op)
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return list(results)


def _eager(run: Callable[[Arrays], Arrays], tensors: Sequence[Any]) -> list[Any]:
    arrays = [_array_of(tensor) for tensor in tensors]
    with engine_errors_as_tf_errors():
        return [tf.convert_to_tensor(result) for result in run(arrays)]


def _array_of(tensor: Any) -> Any:
    """The tensor's memory without a copy, unless it is a scalar; read-only."""
    # A bfloat16 scalar is no array until it is made one.
    return np.asarray(tensor if tensor.shape.rank else tensor.numpy())


def _previous(graph: Any, chain: str) -> list[Any]:
    """The last collective of the graph's chain, if a node made now may wait for it."""
    found = _last_nodes.get(graph, {}).get(chain)
    node = None if found is None else found()
    # From inside of a TF1 loop or condition nothing outside can be waited for, nor the reverse.
    if node is None or node._get_control_flow_context() is not graph._get_control_flow_context():
        return []
    return [node]


def _shapes_of(tensors: Sequence[Any]) -> list[tf.TensorShape]:
    return [tensor.shape for tensor in tensors]


def _other_rows(tensors: Sequence[Any]) -> list[tf.TensorShape]:
    """The shapes with a first dimension that only running tells."""
    return [_with_any_rows(tensor.shape) for tensor in tensors]


def _with_any_rows(shape: tf.TensorShape) -> tf.TensorShape:
    if not shape.rank:  # unknown, or a scalar, which the engine refuses
        return tf.TensorShape(None)
    return tf.TensorShape([None]).concatenate(shape[1:])


def _world_number(what: str, process_set: int) -> int:
    if what == "local_size":
        return world.local_size()
    if what == "local_rank":
        return world.local_rank()
    found = ids_and_ranks()
    if process_set not in found:
        raise ValueError(f"process set {process_set} is not registered")
    members, rank = found[process_set], world.rank()
    if what == "size":
        return len(members)
    is_member = rank in members
    if what == "included":
        return int(is_member)
    return members.index(rank) if is_member else -1
