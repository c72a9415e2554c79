"""Loaders for data modules with their own readers."""

from horovod.spark.data_loaders import pytorch_data_loaders
from horovod.spark.data_loaders.pytorch_data_loaders import *  # noqa: F403

__all__ = list(pytorch_data_loaders.__all__)
