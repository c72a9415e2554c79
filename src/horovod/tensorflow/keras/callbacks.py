"""Callbacks for ``model.fit`` of ``tf.keras``."""

import tensorflow as tf

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

_args = (tf.keras.callbacks.Callback, tf.keras, __name__)

BroadcastGlobalVariablesCallback = with_base(callbacks.BroadcastGlobalVariablesCallback, *_args)
DiLoCoCallback = with_base(local_steps.DiLoCoCallback, *_args)
LocalSGDCallback = with_base(local_steps.LocalSGDCallback, *_args)
LogMetricsCallback = with_base(callbacks.LogMetricsCallback, *_args)
MetricAverageCallback = with_base(callbacks.MetricAverageCallback, *_args)
TrackerCallback = with_base(callbacks.TrackerCallback, *_args)
LearningRateScheduleCallback = with_base(learning_rate.LearningRateScheduleCallback, *_args)
LearningRateWarmupCallback = with_base(learning_rate.LearningRateWarmupCallback, *_args)
BestModelCheckpoint = with_base(
    callbacks.BestModelCheckpoint, tf.keras.callbacks.ModelCheckpoint, tf.keras, __name__
)
