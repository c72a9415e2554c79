"""Callbacks that change the learning rate: schedules and warm-up, for both fronts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from horovod._keras.library import is_keras3
from horovod._keras.momentum import Correction, correction_for
from horovod._keras.variables import attach_state
from horovod.core import world

__all__ = ["LearningRateScheduleCallback", "LearningRateWarmupCallback"]

Multiplier = float | Callable[[float], float]


class LearningRateScheduleCallback:
    """Sets the learning rate to ``initial_lr * multiplier(epoch)`` in a range of epochs.

    Adds the rate as ``logs["lr"]`` at the end of each epoch. No communication.

    Args:
        initial_lr: the rate that is multiplied.
        multiplier: a function of the epoch, with a fraction unless ``staircase``; or a number,
            which means ``multiplier ** (epoch - start_epoch)``.
        start_epoch: first epoch that it acts in.
        end_epoch: first epoch that it does not act in any more; None: it acts to the end.
        staircase: change the rate at the beginning of epochs only, else in every batch.
        momentum_correction: let a momentum that was gathered at the old rate count in proportion to
            the new one, in the batch where the rate changes.
        steps_per_epoch: batches in an epoch; by default what Keras knows.

    Raises:
        ValueError: ``initial_lr`` is None; or, in training, the number of steps is unknown, or the
            optimizer's rate is a schedule of its own.
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
        if initial_lr is None:
            raise ValueError("initial_lr must be the learning rate that is multiplied, found None")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch: int = 0
        self._correction: Correction | None = None
        if callable(multiplier):
            self.multiplier: Callable[[float], float] = multiplier
        else:
            factor = multiplier
            self.multiplier = lambda epoch: factor ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Find out how many batches an epoch has."""
        if self.staircase or self.steps_per_epoch:
            return
        steps = _batches_in(self.params or {})
        if not steps:
            raise ValueError(
                f"{type(self).__name__}: the number of batches in an epoch is unknown here; give "
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
        """Take the momentum correction back, where it has to be."""
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
            self._correction = correction_for(self._keras, self.model.optimizer, new / old)

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

    The rate grows linearly and arrives with the last batch of epoch ``warmup_epochs``. Combine it
    with schedules that begin where it ends.

    Args:
        initial_lr: the rate for training with all ranks, usually that of one rank times ``size()``.
        warmup_epochs: how long it takes.
        momentum_correction: as for ``LearningRateScheduleCallback``.
        steps_per_epoch: batches in an epoch; by default what Keras knows.
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
        # Counted at the end of the batch, so that the last one has the full rate.
        done = epoch + 1.0 / self.steps_per_epoch
        size = world.size()
        return (done * (size - 1) / self.end_epoch + 1) / size

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate; say once that the end is reached."""
        super().on_epoch_end(epoch, logs)
        is_end = self.end_epoch is not None and epoch == self.end_epoch - 1
        if is_end and self.verbose > 0 and world.rank() == 0:
            rate = self._rate()
            print(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.",
                flush=True,
            )


def _batches_in(params: Mapping[str, Any]) -> int:
    """The batches of an epoch, as ``fit`` tells them to callbacks; 0 if it does not know."""
    if params.get("steps"):
        return int(params["steps"])
    # Keras 2 in a TF1 graph.
    samples, batch_size = params.get("samples"), params.get("batch_size")
    return math.ceil(samples / batch_size) if samples and batch_size else 0
