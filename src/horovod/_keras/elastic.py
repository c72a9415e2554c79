"""Elastic training for both fronts: a model as state, and callbacks that commit it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from horovod._keras.bases import with_backend
from horovod._keras.library import backend_name
from horovod._keras.variables import (
    assign_values,
    attach_state,
    broadcast_variables,
    model_variables,
    optimizer_variables,
    read_values,
)
from horovod.core.world import init, rank, shutdown
from horovod.elastic import ObjectState, run_fn
from horovod.elastic.framework_errors import engine_errors
from horovod.elastic.state import check_arrays
from horovod.numpy.objects import broadcast_object

__all__ = [
    "CommitStateCallback",
    "CommitStateCallbackImpl",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateBatchStateCallbackImpl",
    "UpdateEpochStateCallback",
    "UpdateEpochStateCallbackImpl",
    "make_run",
]

R = TypeVar("R")


class KerasState(ObjectState):
    """A model, its optimizer and plain objects, to go back to and to make equal on all ranks.

    Args:
        model: a built model; attribute ``model``.
        optimizer: attribute ``optimizer``; by default the model's.
        kwargs: further attributes, plain objects; see ``ObjectState``.

    Raises:
        ValueError: the model is not built, so it has nothing to save yet.
    """

    _keras: Any

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError(
                "Model must be built first: call model.build(input_shape) or train a batch"
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        _build_optimizer(self.optimizer, model)
        super().__init__(broadcast_object, rank, **kwargs)
        self._saved_values = self._values()

    def restore(self) -> None:
        """Go back to what was saved last."""
        attach_state(self.model)
        assign_values(self._keras, self._variables()[: len(self._saved_values)], self._saved_values)
        super().restore()

    def sync(self) -> None:
        """Make all ranks equal to rank 0, and save; collective, blocks until done.

        After an error ``restore`` goes back to what was saved before.
        """
        attach_state(self.model)
        broadcast_variables(self._keras, self._variables(), 0, "keras.elastic")
        values = self._values()
        super().sync()
        self._saved_values = values

    def saved_values(self) -> dict[str, Any]:
        """What was saved last, as it goes to a file."""
        return {**super().saved_values(), "variables": list(self._saved_values)}

    def take_values(self, values: dict[str, Any]) -> None:
        """Have ``restore`` go back to these."""
        check_arrays(values["variables"], self._saved_values)
        super().take_values(values)
        self._saved_values = values["variables"]

    def _keep(self) -> None:
        self._saved_values = self._values()
        super()._keep()

    def _values(self) -> list[Any]:
        attach_state(self.model)
        return read_values(self._keras, self._variables())

    def _variables(self) -> list[Any]:
        return [*model_variables(self.model), *optimizer_variables(self.optimizer)]


def _build_optimizer(optimizer: Any, model: Any) -> None:
    """Make an optimizer's slots now: later they would be missing in what was saved."""
    if optimizer is None:
        return
    if hasattr(optimizer, "build"):
        if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            optimizer.build(model.trainable_variables)
    elif hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(model.trainable_variables)


def make_run(keras: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """The decorator ``run`` for one Keras."""

    def run(func: Callable[..., R]) -> Callable[..., R]:
        """Decorate ``func(state, *args, **kwargs)`` so that it survives failed collectives.

        Call ``hvd.init()`` before, use no other collective between the two, and keep all that
        training needs in ``state``. Each call starts with ``state.sync()``. After a
        ``HorovodInternalError``, or what the backend makes of one, the state goes back to its last
        commit; then the engine is shut down and started again, which waits for all ranks
        (``HOROVOD_START_TIMEOUT``), reset callbacks run, and ``func`` is called again. Every rank
        has to run the same function.

        Returns:
            A function with the same arguments; it returns what ``func`` returns.

        Raises:
            InitError: (a ``ValueError``) not all ranks came back; the text names those missing.
            Exception: anything else that ``func`` raises.
        """
        if backend_name(keras) == "tensorflow":
            elastic: Callable[..., R] = import_module("horovod.tensorflow.elastic").run(func)
            return elastic
        restart = _restart_with_jax if backend_name(keras) == "jax" else _restart_engine
        return run_fn(_with_engine_errors(func), restart)

    return run


def _with_engine_errors(func: Callable[..., R]) -> Callable[..., R]:
    """``func``, raising the engine's error in place of what a backend has made of it."""

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> R:
        with engine_errors(Exception):
            return func(*args, **kwargs)

    return translated


def _restart_engine() -> None:
    shutdown()
    init()


def _restart_with_jax() -> None:
    # Whether there are others to reduce with is a constant of a compiled step.
    shutdown()
    import_module("jax").clear_caches()
    init()


class CommitStateCallback:
    """Commits the state every ``batches_per_commit`` batches and at the end of each epoch.

    Put it after the callbacks that update the state. Every rank has to use it alike.

    Args:
        state: a ``State``.
        batches_per_commit: how many batches a failure may cost.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count anew: the first commit is a full interval away."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining <= 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback:
    """Keeps ``state.batch``: the number of the batch at the end of each, 0 at the end of epochs.

    After a restore the first epoch's ``params["steps"]`` is less by ``state.batch``. Keras does no
    more than show that number, so give ``fit`` the rest of the epoch's data.

    Args:
        state: a ``State`` with the attribute ``batch``.
    """

    params: Any

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Training begins, perhaps in the middle of an epoch."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Shorten the epoch by what was done before the restore."""
        if self.params and self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The next epoch begins at its beginning."""
        self.state.batch = 0


class UpdateEpochStateCallback:
    """Keeps ``state.epoch``: how many epochs are done, those before this call of ``fit`` included.

    Args:
        state: a ``State`` with the attribute ``epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Count from here."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self.state.epoch = self.initial_epoch + epoch + 1


CommitStateCallbackImpl = with_backend(CommitStateCallback)
UpdateBatchStateCallbackImpl = with_backend(UpdateBatchStateCallback)
UpdateEpochStateCallbackImpl = with_backend(UpdateEpochStateCallback)
