"""Callbacks that change the learning rate: schedules and warm-up.

Momentum correction: momentum is a sum of updates, each made with the learning rate of its time. In
the batch where the rate changes, the sum counts ``new / old`` times. Keras 2's legacy optimizers
read their momentum in each step, so it is multiplied for one batch. Other optimizers compile it in
as a constant; there the sums themselves are multiplied, which has the same effect.
"""

from __future__ import annotations

import math
import reprlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from horovod._keras.library import attach_state, is_keras3, is_legacy_optimizer
from horovod.core import world

Multiplier = float | Callable[[float], float]
_warned = False


class LearningRateScheduleCallback:
    """Sets the learning rate to ``initial_lr * multiplier(epoch)`` in a range of epochs.

    Adds the rate as ``logs["lr"]`` at the end of each epoch. No communication.

    Args:
        initial_lr: the rate that is multiplied.
        multiplier: a function of the epoch, with a fraction unless ``staircase``; or a number,
            which means ``multiplier ** (epoch - start_epoch)``.
        start_epoch: first epoch that it acts in.
        end_epoch: first epoch that it does not act in; None: it acts to the end.
        staircase: change the rate at the beginning of epochs only, else in every batch.
        momentum_correction: scale the momentum by new rate / old rate in the batch where the rate
            changes.
        steps_per_epoch: batches in an epoch; by default Keras's own number.

    Raises:
        ValueError: ``initial_lr`` is no number; or, in training, the number of steps is unknown, or
            the optimizer's rate is itself a schedule.
    """

    _keras: Any
    model: Any
    params: Any

    def __init__(
        self,
        initial_lr: float,
        multiplier: Multiplier,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if not hasattr(initial_lr, "__float__"):
            raise ValueError(
                f"{type(self).__name__}: initial_lr must be a number, the learning rate that is "
                f"multiplied, found {reprlib.repr(initial_lr)}"
            )
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch: int = 0
        self._correction: _ScaledMomentum | None = None
        if callable(multiplier):
            self.multiplier: Callable[[float], float] = multiplier
        else:
            factor = multiplier
            self.multiplier = lambda epoch: factor ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the number of batches in an epoch."""
        if self.staircase or self.steps_per_epoch:
            return
        steps = _batches_in(self.params or {})
        if not steps:
            raise ValueError(
                f"{type(self).__name__}: the number of batches in an epoch is unknown; give "
                "steps_per_epoch"
            )
        self.steps_per_epoch = steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remember the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate for this batch."""
        is_before = self.current_epoch < self.start_epoch
        if is_before or (self.end_epoch is not None and self.current_epoch >= self.end_epoch):
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Undo the momentum correction of a legacy optimizer."""
        if self._correction is not None:
            self._correction.end()
            self._correction = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _adjust(self, epoch: float) -> None:
        attach_state(self.model)
        old = self._rate()
        new = self.initial_lr * self.multiplier(epoch)
        if new == old:
            return
        self._set_rate(new)
        if self.momentum_correction and old > 0:
            self._correction = _correct_momentum(self._keras, self.model.optimizer, new / old)

    def _rate(self) -> float:
        rate = self.model.optimizer.learning_rate
        if is_keras3(self._keras):
            attach_state(self.model)
            return float(self._keras.ops.convert_to_numpy(rate))
        if callable(rate):  # a schedule
            rate = rate(self.model.optimizer.iterations)
        return float(self._keras.backend.get_value(rate))

    def _set_rate(self, rate: float) -> None:
        optimizer = self.model.optimizer
        schedule = self._keras.optimizers.schedules.LearningRateSchedule
        own = getattr(optimizer, "inner_optimizer", optimizer)
        if isinstance(getattr(own, "_learning_rate", None), schedule) or isinstance(
            getattr(own, "_hyper", {}).get("learning_rate"), schedule
        ):
            raise ValueError(
                f"{type(self).__name__}: the optimizer's learning rate is a schedule; create it "
                "with a number"
            )
        if is_keras3(self._keras):
            optimizer.learning_rate = rate
        else:
            self._keras.backend.set_value(optimizer.learning_rate, rate)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr``, batch by batch.

    The rate grows linearly and reaches ``initial_lr`` in the last batch of epoch ``warmup_epochs``.
    Combine it with schedules that begin where it ends.

    Args:
        initial_lr: the rate for training with all ranks, usually that of one rank times ``size()``.
        warmup_epochs: the number of epochs.
        momentum_correction: as for ``LearningRateScheduleCallback``.
        steps_per_epoch: batches in an epoch; by default Keras's own number.
        verbose: 1: rank 0 prints a line at the end.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.verbose = verbose
        super().__init__(
            initial_lr,
            self._factor,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def _factor(self, epoch: float) -> float:
        assert self.steps_per_epoch
        assert self.end_epoch
        # Count this batch as done: the last batch has the full rate.
        done = epoch + 1.0 / self.steps_per_epoch
        size = world.size()
        return (done * (size - 1) / self.end_epoch + 1) / size

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate; at the end of the warm-up print a line."""
        super().on_epoch_end(epoch, logs)
        is_end = self.end_epoch is not None and epoch == self.end_epoch - 1
        if is_end and self.verbose > 0 and world.rank() == 0:
            rate = self._rate()
            print(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.",
                flush=True,
            )


def _batches_in(params: Mapping[str, Any]) -> int:
    """The batches of an epoch, from what ``fit`` gives callbacks; 0 if unknown."""
    if params.get("steps"):
        return int(params["steps"])
    # Keras 2 in a TF1 graph.
    samples, batch_size = params.get("samples"), params.get("batch_size")
    return math.ceil(samples / batch_size) if samples and batch_size else 0


def _correct_momentum(keras: Any, optimizer: Any, factor: float) -> _ScaledMomentum | None:
    """Let accumulated momentum count ``factor`` times; the result has to end after the batch.

    A warning says once if an optimizer's momentum cannot be changed.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    momentum = getattr(optimizer, "momentum", None)
    if momentum is None:
        return None
    if is_legacy_optimizer(keras, optimizer):
        # Before the first step the momentum is no variable, and nothing has accumulated.
        is_variable = hasattr(momentum, "assign")
        return _ScaledMomentum(keras, momentum, factor) if is_variable else None
    if not momentum:
        return None
    sums = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None)
    if sums:
        for variable in sums:
            variable.assign(variable * factor)
    elif getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        _warn_once(optimizer)
    return None


class _ScaledMomentum:
    """A legacy optimizer's momentum, changed for one batch."""

    def __init__(self, keras: Any, variable: Any, factor: float) -> None:
        self._keras = keras
        self._variable = variable
        self._value = keras.backend.get_value(variable)
        keras.backend.set_value(variable, self._value * factor)

    def end(self) -> None:
        self._keras.backend.set_value(self._variable, self._value)


def _warn_once(optimizer: Any) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"momentum_correction has no effect on {type(optimizer).__name__}: its momentum is "
            "compiled into the training step",
            UserWarning,
            stacklevel=6,
        )
