"""Keras models as stages of Spark ML: ``from horovod.spark.keras import KerasEstimator``."""

from horovod.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
