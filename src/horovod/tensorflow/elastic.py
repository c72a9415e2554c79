"""Elastic training with TensorFlow: ``@hvd.elastic.run def train(state): ...``.

The training function is called again, from the last commit, after a collective failed. In an
elastic job the new world has the processes that exist by then, in others all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from horovod.core.world import rank, restart
from horovod.elastic import run_fn
from horovod.elastic.retry import engine_errors
from horovod.elastic.state import (
    VariablesState,
    build_optimizer,
    check_no_shares,
    forget_passes,
    variables_of,
)
from horovod.numpy.objects import broadcast_numbers
from horovod.tensorflow.functions import broadcast_object, broadcast_variables

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

R = TypeVar("R")

_with_engine_errors = engine_errors(
    tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.InternalError
)


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
        InitError: (a ``ValueError``) not all ranks came back, or the job goes on without
            this process; the text says which.
        Exception: anything else that ``func`` raises, other errors of TensorFlow among them.
    """
    return run_fn(_with_engine_errors(func), restart)


class _VariablesState(VariablesState):
    _root_numbers = staticmethod(broadcast_numbers)

    @_with_engine_errors
    def sync(self) -> None:
        """Make all ranks equal to rank 0, and save; collective, blocks until done."""
        super().sync()

    @_with_engine_errors
    def on_reset(self) -> None:
        """A new world has begun; see ``State.on_reset``."""
        super().on_reset()


class TensorFlowState(_VariablesState):
    """Variables and plain objects that a training function needs to go on.

    Args:
        variables: a list, the same in the same order on every rank; without it the global variables
            of the default graph.
        session: where a graph's variables live; without it the default session. Not needed when
            executing eagerly.
        kwargs: further attributes, plain objects; see ``ObjectState``.

    Attributes:
        variables, session: what was given.
    """

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self.session = session
        self._graph_ops: _GraphOps | None = None
        super().__init__(broadcast_object, rank, **kwargs)

    def _read(self) -> list[Any]:
        if tf.executing_eagerly():
            return [variable.numpy() for variable in self.variables]
        values: list[Any] = self._session().run(self._ops().reads)
        return values

    def _write(self, values: list[Any]) -> None:
        if tf.executing_eagerly():
            for variable, value in zip(self.variables, values, strict=True):
                variable.assign(value)
            return
        ops = self._ops()
        self._session().run(ops.write, dict(zip(ops.inputs, values, strict=True)))

    def _broadcast(self) -> None:
        if tf.executing_eagerly():
            broadcast_variables(self.variables, 0)
        else:
            self._session().run(self._ops().broadcast)

    def _session(self) -> Any:
        session = self.session or tf.compat.v1.get_default_session()
        if session is None:
            raise ValueError(
                "TensorFlowState: a graph's variables need a session; give one, or make one the "
                "default"
            )
        return session

    def _ops(self) -> _GraphOps:
        if self._graph_ops is None:
            with self._session().graph.as_default():
                self._graph_ops = _GraphOps(self.variables)
        return self._graph_ops


class _GraphOps:
    """Operations that read, write and broadcast variables in a TF1 graph; made once per state."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.reads = [variable.read_value() for variable in variables]
        self.inputs = [tf.compat.v1.placeholder(read.dtype, read.shape) for read in self.reads]
        pairs = zip(variables, self.inputs, strict=True)
        self.write = tf.group(*[variable.assign(value) for variable, value in pairs])
        self.broadcast = broadcast_variables(variables, 0)


class TensorFlowKerasState(_VariablesState):
    """A Keras model, its optimizer and plain objects that a training function needs to go on.

    Args:
        model: a built Keras model, equal on all ranks but for its weights.
        optimizer: ``model.optimizer`` by default; its variables are made if they are not there yet.
        backend: the Keras backend whose session holds the variables, in a TF1 graph.
        kwargs: further attributes, plain objects; see ``ObjectState``.

    Attributes:
        model, optimizer, backend: what was given.

    Raises:
        ValueError: the model is not built, so it has no weights; or the optimizer of Keras has
            ``sharded=True``.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if not getattr(model, "built", False):
            raise ValueError("Model must be built first; call model.build(input_shape)")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        self.backend = backend
        check_no_shares(self.optimizer)
        if tf.executing_eagerly():
            build_optimizer(self.optimizer, model)
        super().__init__(broadcast_object, rank, **kwargs)

    def _variables(self) -> list[Any]:
        found = [*self.model.weights, *variables_of(self.optimizer)]
        return list({id(variable): variable for variable in found}.values())

    def _read(self) -> list[Any]:
        if tf.executing_eagerly():
            return [np.array(variable.numpy()) for variable in self._variables()]
        values: list[Any] = self._backend().batch_get_value(self._variables())
        return values

    def _write(self, values: list[Any]) -> None:
        variables = self._variables()
        # Variables that an optimizer made since start from what they are made with: zeros.
        fresh = [
            np.zeros(tuple(own.shape), tf.as_dtype(own.dtype).as_numpy_dtype)
            for own in variables[len(values) :]
        ]
        pairs = list(zip(variables, [*values, *fresh], strict=True))
        if not tf.executing_eagerly():
            self._backend().batch_set_value(pairs)
            return
        for variable, value in pairs:
            variable.assign(value)
        forget_passes(self.optimizer)

    def _broadcast(self) -> None:
        operation = broadcast_variables(self._variables(), 0)
        if operation is not None:
            self._backend().get_session().run(operation)
        else:
            forget_passes(self.optimizer)

    def _backend(self) -> Any:
        return tf.compat.v1.keras.backend if self.backend is None else self.backend
