"""Elastic training with Keras: a model as state, and callbacks that commit it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from horovod._keras.library import (
    assign_values,
    attach_state,
    backend_name,
    broadcast_variables,
    optimizer_variables,
    read_values,
    with_backend,
)
from horovod.core.world import rank, restart
from horovod.elastic import run_fn
from horovod.elastic.retry import engine_errors
from horovod.elastic.state import (
    VariablesState,
    build_optimizer,
    check_no_shares,
    forget_passes,
)
from horovod.numpy.objects import broadcast_numbers, broadcast_object

R = TypeVar("R")


class KerasState(VariablesState):
    """A model, its optimizer and plain objects that can be saved, restored and synchronized.

    Args:
        model: a built model; attribute ``model``.
        optimizer: attribute ``optimizer``; by default the model's.
        kwargs: further attributes, plain objects; see ``ObjectState``.

    Raises:
        ValueError: the model is not built, or the optimizer has ``sharded=True``.
    """

    _keras: Any
    _root_numbers = staticmethod(broadcast_numbers)

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError(
                "Model must be built first: call model.build(input_shape) or train a batch"
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        check_no_shares(self.optimizer)
        build_optimizer(self.optimizer, model)
        super().__init__(broadcast_object, rank, **kwargs)

    def _read(self) -> list[Any]:
        attach_state(self.model)
        return read_values(self._keras, self._variables())

    def _write(self, values: list[Any]) -> None:
        attach_state(self.model)
        assign_values(self._keras, self._variables()[: len(values)], values)
        forget_passes(self.optimizer)

    def _broadcast(self) -> None:
        attach_state(self.model)
        broadcast_variables(self._keras, self._variables(), 0, "keras.elastic")
        forget_passes(self.optimizer)

    def _variables(self) -> list[Any]:
        return [*self.model.weights, *optimizer_variables(self.optimizer)]


def make_run(keras: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """The decorator ``run`` for one Keras."""

    def run(func: Callable[..., R]) -> Callable[..., R]:
        """Decorate ``func(state, *args, **kwargs)`` so that it survives failed collectives.

        Call ``hvd.init()`` before, use no other collective between the two, and keep all that
        training needs in ``state``. Each call starts with ``state.sync()``. After a
        ``HorovodInternalError``, or the backend's form of one, the state goes back to its last
        commit. The engine then shuts down and starts again, which waits for all ranks
        (``HOROVOD_START_TIMEOUT``). Then reset callbacks run, and ``func`` is called again. Every
        rank has to run the same function.

        Returns:
            A function with the same arguments; it returns what ``func`` returns.

        Raises:
            InitError: (a ``ValueError``) ranks did not come back; ``ranks`` has them.
            Exception: anything else that ``func`` raises.
        """
        if backend_name(keras) == "tensorflow":
            elastic: Callable[..., R] = import_module("horovod.tensorflow.elastic").run(func)
            return elastic
        reset = restart
        if backend_name(keras) == "jax":
            reset = import_module("horovod.jax.elastic").restart_engine
        return run_fn(engine_errors(Exception)(func), reset)

    return run


class CommitStateCallback:
    """Commits the state every ``batches_per_commit`` batches and at the end of each epoch.

    Put it after the callbacks that update the state. Every rank has to use it alike.

    Args:
        state: a ``State``.
        batches_per_commit: the number of batches that a failure may lose.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Start a full interval."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit at the end of the interval."""
        self.batches_remaining -= 1
        if self.batches_remaining <= 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback:
    """Sets ``state.batch``: the batch's number after each batch, 0 after each epoch.

    After a restore the first epoch's ``params["steps"]`` is reduced by ``state.batch``. Keras only
    displays that number, so give ``fit`` the rest of the epoch's data.

    Args:
        state: a ``State`` with the attribute ``batch``.
    """

    params: Any

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Forget the number of steps of an earlier training."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Reduce the steps by the batches done before the restore."""
        if self.params and self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Store the batch's number."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reset the batch's number."""
        self.state.batch = 0


class UpdateEpochStateCallback:
    """Sets ``state.epoch`` to the number of finished epochs, earlier calls of ``fit`` included.

    Args:
        state: a ``State`` with the attribute ``epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Remember the number of epochs before this training."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Store the number of finished epochs."""
        self.state.epoch = self.initial_epoch + epoch + 1


CommitStateCallbackImpl = with_backend(CommitStateCallback)
UpdateBatchStateCallbackImpl = with_backend(UpdateBatchStateCallback)
UpdateEpochStateCallbackImpl = with_backend(UpdateEpochStateCallback)
