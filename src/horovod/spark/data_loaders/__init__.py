"""Loaders for data modules with their own readers."""

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
