"""One interface to the variables of TensorFlow 1, TensorFlow 2 and Keras 3, and names from them.

Keras 3 wraps a ``tf.Variable`` in an object of its own that has neither ``ref`` nor an operation.
The name of an operation on a variable is the position and the last part of the variable's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.core.gradient_groups import leaf_of
from horovod.core.operations import Dtype

# Graphs of branches and loop bodies: parts of the function around them, with names of their own.
_PARTS = frozenset({"CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph"})

# Dtypes that a broadcast takes; others travel as bytes.
_WIRE_DTYPES = frozenset(
    tf.as_dtype(dtype.name.lower()) for dtype in Dtype if dtype is not Dtype.BFLOAT16
)


def is_variable(value: object) -> bool:
    """Whether this is a variable of TensorFlow or Keras."""
    return isinstance(value, tf.Variable) or (hasattr(value, "path") and hasattr(value, "assign"))


def as_tf_variable(variable: Any) -> Any:
    """The ``tf.Variable`` inside a variable of Keras 3; any other one as it is."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


def key_of(variable: Any) -> int:
    """Tells one variable from another, through Keras or not, while the variable lives."""
    return id(as_tf_variable(variable))


def operation_names(scope: str, variables: Sequence[Any]) -> list[str]:
    """A name for an operation on each of the variables; they differ.

    Equal on all ranks that have the same variables in the same order.
    """
    return [
        f"{scope}/{position}.{leaf_of(variable)}" for position, variable in enumerate(variables)
    ]


def unique_scope(name: str) -> str:
    """``name``, in a graph made unique within the function that is being built.

    Branches and loop bodies are graphs of their own, whose names know nothing of each other.
    """
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    while type(graph).__name__ in _PARTS:
        graph = graph.outer_graph
    with graph.name_scope(None):
        unique: str = graph.unique_name(name)
    return unique


def to_wire(variable: Any) -> Any:
    """The value of a variable, in a dtype that a broadcast takes.

    Raises:
        ValueError: TensorFlow cannot show its bytes.
    """
    value = tf.convert_to_tensor(variable)
    if value.dtype in _WIRE_DTYPES:
        return value
    try:
        return tf.bitcast(value, tf.uint8)
    except (TypeError, tf.errors.InvalidArgumentError):
        raise ValueError(
            f"variable {variable.name!r} is of {value.dtype.name}, which cannot be broadcast"
        ) from None


def from_wire(value: Any, variable: Any) -> Any:
    """The reverse of ``to_wire``, in the dtype of the variable."""
    dtype = variable.dtype.base_dtype
    return value if dtype in _WIRE_DTYPES else tf.bitcast(value, dtype)
