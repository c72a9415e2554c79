"""Loaders for data modules that bring readers of their own."""

from horovod.spark.data_loaders.pytorch_data_loaders import (
    PytorchAsyncDataLoader,
    PytorchDataLoader,
    PytorchInfiniteAsyncDataLoader,
    PytorchInfiniteDataLoader,
    PytorchInmemAsyncDataLoader,
    PytorchInmemDataLoader,
)

__all__ = [
    "PytorchAsyncDataLoader",
    "PytorchDataLoader",
    "PytorchInfiniteAsyncDataLoader",
    "PytorchInfiniteDataLoader",
    "PytorchInmemAsyncDataLoader",
    "PytorchInmemDataLoader",
]
