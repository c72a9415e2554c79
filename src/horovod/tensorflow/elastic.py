"""Elastic training with TensorFlow: ``@hvd.elastic.run def train(state): ...``.

The training function is called again, from the last commit, after a collective failed. In this
version a job keeps its size: all of its processes take part in the new world.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from horovod.elastic import ObjectState, run_fn
from horovod.errors import HorovodInternalError
from horovod.tensorflow.functions import broadcast_object, broadcast_variables
from horovod.tensorflow.variables import as_tf_variable
from horovod.world import init, rank, shutdown

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Decorate ``func(state, *args, **kwargs)`` so that it survives failed collectives.

    Call ``hvd.init()`` before, use no other collective between the two, and keep all that training
    needs in ``state``. Each call starts with ``state.sync()``. After a ``HorovodInternalError``, or
    the error that TensorFlow makes of one inside of a graph, the state goes back to its last
    commit; after a ``HostsUpdatedInterrupt`` it stays; then the engine is shut down and started
    again, which waits for all ranks (``HOROVOD_START_TIMEOUT``), reset callbacks run, and ``func``
    is called again. Every rank has to run the same function.

    Returns:
        A function with the same arguments; it returns what ``func`` returns.

    Raises:
        tf.errors.FailedPreconditionError: ranks disagree about a collective; a bug would only come
            again.
        InitError: (a ``ValueError``) not all ranks came back; the text names those missing.
        Exception: anything else that ``func`` raises, other errors of TensorFlow among them.
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> R:
        try:
            return func(*args, **kwargs)
        except (tf.errors.UnknownError, tf.errors.AbortedError) as error:
            if not _is_of_a_collective(error):
                raise
            raise HorovodInternalError(str(error)) from error

    return run_fn(translated, _restart_engine)


class _VariablesState(ObjectState):
    """Variables and plain objects; subclasses say which variables and how to reach them."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(broadcast_object, rank, **kwargs)
        self._saved_values: list[Any] = self._read()

    def save(self) -> None:
        """Copy all values to host memory."""
        self._saved_values = self._read()
        super().save()

    def restore(self) -> None:
        """Go back to what was saved last."""
        self._write(self._saved_values)
        super().restore()

    def sync(self) -> None:
        """Make all ranks equal to rank 0, and save the variables; collective, blocks until done."""
        self._broadcast()
        self._saved_values = self._read()
        super().sync()

    def _read(self) -> list[Any]:
        raise NotImplementedError

    def _write(self, values: list[Any]) -> None:
        raise NotImplementedError

    def _broadcast(self) -> None:
        raise NotImplementedError
