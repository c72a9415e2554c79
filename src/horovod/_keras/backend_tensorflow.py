"""Keras 3 and 2 on TensorFlow: gradients are reduced as in ``horovod.tensorflow``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import tensorflow as tf

from horovod._keras.reducer import Options, Reducer
from horovod.core.compression import compress_all, decompress_all
from horovod.tensorflow.collectives import grouped_allgather, grouped_reducescatter
from horovod.tensorflow.compression import Compression as Compression
from horovod.tensorflow.gradient_reduction import Reducer as GraphReducer


def make_reducer(name: str, options: Options) -> Reducer:
    """A reducer of dense and sparse gradients, eager and in graphs; see ``GradientReducer``."""
    names = {field.name for field in fields(GraphReducer)} - {"name", "use_generic_names"}
    reduce_in_graph = GraphReducer(name, **{key: getattr(options, key) for key in names})

    def reduce(
        gradients: Sequence[Any], variables: Sequence[Any], _: Any, is_local: Sequence[bool]
    ) -> list[Any]:
        local = [variable for variable, keeps in zip(variables, is_local, strict=True) if keeps]
        return reduce_in_graph(gradients, variables, local)

    return reduce


class Sharing:
    """Moves the parts of gradients and variables of an optimizer whose step ranks share.

    Args:
        name: the beginning of operation names; the same on every rank.
        options: how to reduce.
    """

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._compression = options.compression
        self._process_set = options.process_set
        factor = options.gradient_predivide_factor
        self._operation = (options.op, 1.0 / factor, factor, True, options.process_set)

    def reduce(self, gradients: list[Any]) -> list[Any]:
        """This rank's parts of flat gradients, reduced."""
        wires, contexts = compress_all(self._compression, gradients)
        parts = grouped_reducescatter(wires, f"{self._name}.shares", *self._operation)
        return decompress_all(self._compression, parts, contexts)

    def gather(self, parts: list[Any]) -> list[Any]:
        """What all ranks have, joined."""
        return grouped_allgather(parts, f"{self._name}.variables", True, self._process_set)


def compute_gradients(loss: Any, variables: list[Any], grad_loss: Any, tape: Any) -> list[Any]:
    """The gradients of this rank.

    Raises:
        ValueError: the loss is a tensor, and there is no tape.
    """
    if callable(loss):
        with tape or tf.GradientTape() as recorded:
            value = loss()
        return list(recorded.gradient(value, variables, grad_loss))
    if tape is None:
        raise ValueError("compute_gradients: a loss tensor needs the tape that recorded it")
    return list(tape.gradient(loss, variables, grad_loss))


def to_tensor(array: Any) -> Any:
    """A tensor with the contents of a NumPy array; in a TF1 graph the array itself."""
    return tf.convert_to_tensor(array) if tf.executing_eagerly() else array


def global_variables() -> list[Any]:
    """All variables of the TF1 graph.

    Raises:
        RuntimeError: TensorFlow executes eagerly.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() needs a TF1 graph; when executing eagerly use "
            "BroadcastGlobalVariablesCallback"
        )
    return list(tf.compat.v1.global_variables())
