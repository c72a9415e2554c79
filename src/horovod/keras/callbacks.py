"""Callbacks for ``model.fit`` of ``keras``."""

from __future__ import annotations

from typing import Any

import keras

from horovod._keras import callbacks, learning_rate, local_steps
from horovod._keras.library import with_base

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "DiLoCoCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LocalSGDCallback",
    "LogMetricsCallback",
    "MetricAverageCallback",
    "TrackerCallback",
]

_args = (keras.callbacks.Callback, keras, __name__)

BroadcastGlobalVariablesCallback = with_base(callbacks.BroadcastGlobalVariablesCallback, *_args)
DiLoCoCallback = with_base(local_steps.DiLoCoCallback, *_args)
LocalSGDCallback = with_base(local_steps.LocalSGDCallback, *_args)
LogMetricsCallback = with_base(callbacks.LogMetricsCallback, *_args)
MetricAverageCallback = with_base(callbacks.MetricAverageCallback, *_args)
TrackerCallback = with_base(callbacks.TrackerCallback, *_args)
LearningRateScheduleCallback = with_base(learning_rate.LearningRateScheduleCallback, *_args)
LearningRateWarmupCallback = with_base(learning_rate.LearningRateWarmupCallback, *_args)
_BestModelCheckpoint: Any = with_base(
    callbacks.BestModelCheckpoint, keras.callbacks.ModelCheckpoint, keras, __name__
)


class BestModelCheckpoint(_BestModelCheckpoint):  # type: ignore[misc]
    """``ModelCheckpoint`` of the best model; set its ``filepath`` before training.

    Args:
        monitor, verbose, mode, save_freq: as for ``ModelCheckpoint``; whole models are saved.

    Raises:
        ValueError: (when training begins) ``filepath`` is not set.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(monitor, verbose, False, mode, save_freq)
