"""What callers of ``collectives`` give, checked and made into what ``CollectiveOps`` takes.

A wrong constant or type is a ``ValueError``; what the engine would refuse when the operation runs
is the same ``tf.errors.InvalidArgumentError`` here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from horovod.core.operations import Average, Sum, resolve_op
from horovod.core.process_sets import ProcessSet, number_of

__all__ = [
    "dense_tensors",
    "int32_splits",
    "reduction",
    "root_of",
    "scattering",
    "variable_list",
    "with_rows",
]


def reduction(
    op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> tuple[int, float, float, int]:
    """Op, factors and process set of a reduction."""
    return resolve_op(None, op), _factor(prescale), _factor(postscale), number_of(process_set)


def scattering(
    op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> tuple[int, float, float, int]:
    """The same of a reducescatter, which knows Average and Sum only."""
    options = reduction(op, prescale, postscale, process_set)
    if op not in (Average, Sum):
        text = f"reducescatter: op must be Average or Sum, found {op}"
        raise tf.errors.InvalidArgumentError(None, None, text)
    return options


def root_of(root_rank: Any) -> int:
    """The rank that a broadcast comes from."""
    if not hasattr(root_rank, "__index__"):
        raise ValueError(f"broadcast: root_rank must be a rank, found {root_rank!r}")
    return int(root_rank)


def dense_tensors(call: str, tensors: Any) -> list[Any]:
    """A list of tensors, as ``call`` got it."""
    if not isinstance(tensors, (list, tuple)):
        raise ValueError(f"{call}: expected a list of tensors, found {type(tensors).__name__}")
    return [tf.convert_to_tensor(tensor) for tensor in tensors]


def with_rows(tensors: list[Any]) -> list[Any]:
    """The tensors; in a graph ``ValueError`` for what is known to be a scalar."""
    if not tf.executing_eagerly() and any(tensor.shape.rank == 0 for tensor in tensors):
        raise ValueError("reducescatter does not support scalar tensors")
    return tensors


def int32_splits(splits: Any) -> Any:
    """The splits of an alltoall as a tensor."""
    try:
        return tf.convert_to_tensor(splits, dtype=tf.int32)
    except (TypeError, ValueError) as error:
        text = f"alltoall: splits must be an int32 vector or a list of integers: {error}"
        raise tf.errors.InvalidArgumentError(None, None, text) from None


def variable_list(variables: Any) -> list[Any]:
    """Variables of one kind."""
    if not isinstance(variables, (list, tuple)):
        raise ValueError(f"broadcast_: expected a list, found {type(variables).__name__}")
    if not all(hasattr(variable, "assign") for variable in variables):
        raise ValueError("broadcast_: expected a list of variables")
    if len({hasattr(variable, "handle") for variable in variables}) > 1:
        raise ValueError("broadcast_: expected resource or reference variables, found both")
    return list(variables)


def _factor(factor: float) -> float:
    try:
        return float(np.float32(factor + 0.0))  # text and None do not add
    except TypeError:
        raise ValueError(f"scale factors must be numbers, found {factor!r}") from None
