"""Checks the arguments of ``collectives`` and makes them what ``CollectiveOps`` takes.

A wrong constant or type is a ``ValueError``. An argument that the engine would refuse when the
operation runs is the same ``tf.errors.InvalidArgumentError`` here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from horovod.core import calls
from horovod.core.calls import Call
from horovod.core.compression import LinkFormat
from horovod.core.operations import Kind, Result, resolve_op
from horovod.core.process_sets import ProcessSet, number_of
from horovod.errors import HorovodInternalError


def reduction(
    kind: Kind,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    link_format: int = LinkFormat.AS_SET,
) -> Call:
    """``calls.reduction`` with factors that float32 can hold."""
    number_of(process_set)
    factors = (_factor(prescale), _factor(postscale))
    try:
        op = resolve_op(None, op)
        return calls.reduction(kind, None, op, *factors, process_set, link_format)
    except HorovodInternalError as error:
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from None


def exchange(kind: Kind, process_set: ProcessSet, root_rank: Any = 0) -> Call:
    """``calls.exchange`` on a set that is registered in this world."""
    number_of(process_set)
    return calls.exchange(kind, process_set, root_rank)


def dense_tensors(call: str, tensors: Any) -> list[Any]:
    """A list of tensors, as ``call`` got it."""
    if not isinstance(tensors, (list, tuple)):
        raise ValueError(f"{call}: expected a list of tensors, found {type(tensors).__name__}")
    return [tf.convert_to_tensor(tensor) for tensor in tensors]


def check_rows(call: Call, tensors: list[Any]) -> None:
    """In a graph ``ValueError`` for a scalar, of which a reducescatter can give no rows."""
    is_graph = call.row.result is Result.OWN_ROWS and not tf.executing_eagerly()
    if is_graph and any(tensor.shape.rank == 0 for tensor in tensors):
        raise ValueError(f"{call.title} does not support scalar tensors")


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
