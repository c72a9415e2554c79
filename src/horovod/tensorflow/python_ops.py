"""The collectives as Python operations: slower than the native ones, and for every TensorFlow.

Eagerly the engine gets the tensors' memory at once. In a graph one stateful ``tf.numpy_function``
starts the operations of a node and waits for them. Such nodes block a thread of TensorFlow, so
those of a graph run one after the other in the order of its construction, which has to be the same
on all ranks. TensorFlow has two classes for exceptions of a Python node: ``InvalidArgumentError``
for a ``ValueError``, and ``UnknownError`` for all others, also where ranks disagree. The text has
the engine's class and sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from horovod.core import port, world
from horovod.core.calls import Call, check_splits
from horovod.core.collectives import join
from horovod.core.operations import Kind
from horovod.core.process_sets import ids_and_ranks
from horovod.errors import HorovodInternalError
from horovod.numpy.adapter import ArrayCalls, NumpyAdapter
from horovod.tensorflow import gradients
from horovod.tensorflow.names import node_name, op_type_of
from horovod.tensorflow.util import engine_errors_as_tf_errors

Arrays = list[NDArray[Any]]

_calls = ArrayCalls(NumpyAdapter())

# The last collective of each graph, by chain: the next one of the chain waits for it. Broadcasts
# are a chain of their own, since a TF1 script broadcasts the first values before it can run, or
# feed, a training step.
_last_nodes: WeakKeyDictionary[Any, dict[str, ref[Any]]] = WeakKeyDictionary()


class PythonOps:
    """``CollectiveOps`` over the engine's Python interface."""

    def run(self, call: Call, names: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """See ``CollectiveOps``."""

        def run(arrays: Arrays) -> Arrays:
            return _calls.run(call, list(names), arrays)

        def gradient(*grads: Any) -> list[Any]:
            return gradients.of_call(self, call, names, grads, tensors)

        shapes = [tensor.shape for tensor in tensors]
        if not call.keeps_shape:
            shapes = [_with_any_rows(shape) for shape in shapes]
        name = node_name(op_type_of(call.kind), names, call.is_group)
        chain = "broadcast" if call.kind is Kind.BROADCAST else ""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def node(*inputs: Any) -> Any:
            dtypes = [tensor.dtype for tensor in inputs]
            return _node(name, run, inputs, dtypes, shapes, chain), gradient

        return list(node(*tensors))

    def alltoall(self, call: Call, name: str, tensor: Any, splits: Any | None) -> tuple[Any, Any]:
        """See ``CollectiveOps``."""

        def run(arrays: Arrays) -> Arrays:
            array, *given = arrays
            rows = [check_splits(NumpyAdapter().split_list(found)) for found in given]
            return _calls.run(call, [name], [array], rows[0] if rows else ())

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def exchange(tensor: Any) -> Any:
            inputs = [tensor] if splits is None else [tensor, splits]
            dtypes = [tensor.dtype, tf.int32]
            shapes = [_with_any_rows(tensor.shape), tf.TensorShape([None])]
            output, received = _node(f"{name}/", run, inputs, dtypes, shapes)

            def gradient(grad: Any, _: Any) -> Any:
                return gradients.of_alltoall(self, call, name, grad, tensor, received)

            return (output, received), gradient

        output, received = exchange(tensor)
        return output, received

    def join(self, name: str) -> Any:
        """See ``CollectiveOps``."""

        def run(_: Arrays) -> Arrays:
            return [np.array(join(), np.int32)]

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
            port.keep_failure(error)  # TensorFlow passes on no more than its text
            raise

    graph = tf.compat.v1.get_default_graph()
    with graph.control_dependencies(_previous(graph, chain)):
        results = tf.numpy_function(call, list(tensors), list(dtypes), name=name)
    _last_nodes.setdefault(graph, {})[chain] = ref(results[0].op)
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return list(results)


def _eager(run: Callable[[Arrays], Arrays], tensors: Sequence[Any]) -> list[Any]:
    # The tensors' memory without a copy; a bfloat16 scalar is no array until it is made one.
    arrays = [np.asarray(tensor if tensor.shape.rank else tensor.numpy()) for tensor in tensors]
    with engine_errors_as_tf_errors():
        return [tf.convert_to_tensor(result) for result in run(arrays)]


def _previous(graph: Any, chain: str) -> list[Any]:
    """The last collective of the graph's chain, if a node made now may wait for it."""
    found = _last_nodes.get(graph, {}).get(chain)
    node = None if found is None else found()
    # In a TF1 loop or condition a node cannot wait for one outside, nor the reverse.
    if node is None or node._get_control_flow_context() is not graph._get_control_flow_context():
        return []
    return [node]


def _with_any_rows(shape: tf.TensorShape) -> tf.TensorShape:
    """The shape with a first dimension that is known only when the node runs."""
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
