"""Give all ranks one rank's variables or objects; gather objects from all.

Objects travel outside of TensorFlow, so they need no session, also where a graph is being built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.numpy import objects
from horovod.tensorflow import collectives
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.variables import (
    as_tf_variable,
    from_wire,
    is_variable,
    operation_names,
    to_wire,
    unique_scope,
)

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


@not_converted
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite variables on all ranks with the root's values.

    Args:
        variables: of TensorFlow or Keras, of any shapes and dtypes except strings; the same in the
            same order on every rank.
        root_rank: the rank of the world whose values all ranks get; the same on every rank.
        process_set: the ranks that take part; this process and the root are among them.
        inplace: use ``broadcast_``; what the variables hold then is the same.

    Returns:
        In a graph an operation, which assigns the values when it runs; eagerly None, and all is
        done.

    Raises:
        ValueError: ``variables`` is no list of them, or one has a dtype that cannot be sent.
        tf.errors.InvalidArgumentError: there is no such root.
        tf.errors.FailedPreconditionError: ranks disagree about a variable.
        tf.errors.UnknownError: a rank was lost.
    """
    if not isinstance(variables, Iterable) or is_variable(variables):
        raise ValueError(
            "broadcast_variables: expected a list of variables, found "
            f"{type(variables).__name__}; give [variable]"
        )
    found = [as_tf_variable(variable) for variable in variables]
    if inplace:
        scope = unique_scope("broadcast_variables")
        updates = collectives.broadcast_(found, root_rank, name=scope, process_set=process_set)
    else:
        updates = _broadcast(found, root_rank, process_set)
    return None if tf.executing_eagerly() else tf.group(*updates)


@not_converted
def broadcast_global_variables(root_rank: int) -> Any:
    """An operation that gives all global variables of the default graph the root's values.

    Run it once in a session, after initialisation. Every rank has to have the same variables.

    Raises:
        RuntimeError: operations are executed eagerly, where no variable is global.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() needs a TF1 graph: there are no global variables when "
            "executing eagerly; use broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


@not_converted
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Give all ranks a copy of the root's object; blocks until it is there.

    In a ``tf.function`` this happens while the function is traced, not when it runs.

    Args:
        obj: on the root anything that cloudpickle can pickle; ignored elsewhere.
        root_rank: the rank whose object all ranks get; the same on every rank.
        session: accepted because existing scripts pass it; not needed.
        name: of the operation, the same on every rank; needed only where several threads send
            objects at the same time.
        process_set: the ranks that take part; the root is one of them.

    Returns:
        On the root ``obj`` itself, elsewhere a copy.

    Raises:
        ValueError: there is no such root rank.
        RuntimeError: the root's object cannot be pickled.
        HorovodInternalError: ranks disagree about the operation, or a rank was lost.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function of one object that is ``broadcast_object`` with these arguments."""
    return partial(
        broadcast_object, root_rank=root_rank, session=session, name=name, process_set=process_set
    )


@not_converted
def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Give all ranks the objects of all ranks, by rank; blocks until they are there.

    Arguments and errors are those of ``broadcast_object``; objects may differ in type and size.
    """
    return objects.allgather_object(obj, name, process_set)


def _broadcast(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> list[Any]:
    names = operation_names(unique_scope("broadcast_variables"), variables)
    tensors = [to_wire(variable) for variable in variables]
    values = collectives.broadcast_batch(tensors, names, root_rank, process_set)
    pairs = zip(variables, values, strict=True)
    return [variable.assign(from_wire(value, variable)) for variable, value in pairs]
