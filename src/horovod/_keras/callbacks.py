"""Callbacks without a base; ``with_base`` adds the base of one Keras.

They communicate on the caller's thread, between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod._keras.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from horovod._keras.library import (
    attach_state,
    broadcast_variables,
    is_keras3,
    optimizer_variables,
    with_backend,
)
from horovod.metrics.sampling import MOST_NAME, log_metrics
from horovod.numpy.objects import allgather_object


class BroadcastGlobalVariablesCallback:
    """Gives all ranks the root's model and optimizer, once, at the end of the first batch.

    By then all weights and the optimizer's slots exist. Metrics and the states of random generators
    are not broadcast. Blocks until all ranks call it, so every rank has to train with it.

    Args:
        root_rank: the rank whose values all ranks get; the same on every rank.
        device: has no effect; values go through host memory.
        local_variables: variables that are not broadcast; the same on every rank.

    Raises:
        ValueError: (at that moment, on every rank) ranks have different models or optimizers.
    """

    _keras: Any
    model: Any

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Sequence[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local_variables = list(local_variables or ())

    def register_local_var(self, var: Any) -> None:
        """Do not broadcast ``var``; call it alike on every rank."""
        self._local_variables.append(var)

    def on_train_begin(self, logs: Any = None) -> None:
        """Make the optimizer's slots, which it has already on a rank that has loaded its model.

        TensorFlow traces a step that makes variables twice, and the operations of the second trace
        get other names than those of a rank that traces it once.
        """
        model = self.model
        if is_keras3(self._keras) and model.built and not getattr(model.optimizer, "built", True):
            model.optimizer.build(model.trainable_variables)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast, the first time."""
        if self.broadcast_done:
            return
        attach_state(self.model)
        broadcast_variables(
            self._keras,
            [*self.model.weights, *optimizer_variables(self.model.optimizer)],
            self.root_rank,
            "keras.broadcast",
            excluded=self._local_variables,
        )
        self.broadcast_done = True


class MetricAverageCallback:
    """Replaces every number in ``logs`` by its average over the ranks, at the end of each epoch.

    Arrays of equal shapes are averaged, too; other values do not change. A value that only some
    ranks have (validation on one rank) is averaged over those ranks. Must come before callbacks
    that use ``logs``: ``ReduceLROnPlateau``, ``TensorBoard``, checkpoints. Blocks until all ranks
    call it.

    Args:
        device: has no effect; values go through host memory.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average, in place."""
        mine = {name: _number(value) for name, value in sorted((logs or {}).items())}
        numbers = {name: value for name, value in mine.items() if value is not None}
        found = allgather_object(numbers, "keras.metric_average")
        for name, value in numbers.items():
            shape = value.shape
            same = [other[name] for other in found if name in other and other[name].shape == shape]
            average = np.mean(same, axis=0)
            logs[name] = float(average) if not shape else average


class LogMetricsCallback:
    """Shows the loss and the other metrics of this rank in the page of ``horovodrun --report``.

    Those of training after each batch, those of validation after each epoch; see
    ``hvd.log_metrics``.

    Args:
        batch_size: the samples of a batch of this rank; with it samples per second are shown, too.
    """

    def __init__(self, batch_size: int = 0) -> None:
        super().__init__()
        self.batch_size = batch_size
        self._step = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Log the metrics of training."""
        self._log(logs, self.batch_size)
        self._step += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the metrics of validation."""
        self._log({k: v for k, v in (logs or {}).items() if k.startswith("val_")}, 0)

    def _log(self, logs: Any, samples: int) -> None:
        found = {name[:MOST_NAME]: _number(value) for name, value in (logs or {}).items()}
        numbers = {k: float(v) for k, v in found.items() if v is not None and not v.shape}
        log_metrics(numbers, self._step, samples=samples)


def _number(value: Any) -> Any:
    """``value`` as an array of floats; None if it is no number."""
    if value is None or isinstance(value, str | bytes | bool):
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array.astype(np.float64) if array.dtype.kind in "iuf" else None


class TrackerCallback:
    """Sends ``hvd.metrics()`` while ``fit`` trains; each batch is a step.

    Args:
        tracker: one of ``horovod.trackers``; it stays open.
    """

    def __init__(self, tracker: Any) -> None:
        super().__init__()
        self._tracker = tracker

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the step, and send if it is time."""
        self._tracker.step()

    def on_train_end(self, logs: Any = None) -> None:
        """Send the last numbers."""
        self._tracker.send()


class BestModelCheckpoint:
    """``ModelCheckpoint`` of the best model so far; set its ``filepath`` before training.

    Args:
        monitor, verbose, save_weights_only, mode, save_freq: as for ``ModelCheckpoint``;
            ``save_best_only`` is True.

    Raises:
        ValueError: (when training begins) ``filepath`` is not set.
    """

    _keras: Any
    filepath: str | None

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        # Keras 3 checks the ending in the constructor.
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(  # type: ignore[call-arg]
            filepath=f"best{ending}" if is_keras3(self._keras) else None,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """As the original.

        Raises:
            ValueError: ``filepath`` is not set.
        """
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: set callback.filepath before training")
        super().on_train_begin(logs)  # type: ignore[misc]


BroadcastGlobalVariablesCallbackImpl = with_backend(BroadcastGlobalVariablesCallback)
MetricAverageCallbackImpl = with_backend(MetricAverageCallback)
LearningRateScheduleCallbackImpl = with_backend(LearningRateScheduleCallback)
LearningRateWarmupCallbackImpl = with_backend(LearningRateWarmupCallback)
