"""NumPy arrays for the engine: the smallest adapter, and the model for another framework's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from horovod.core.collectives import Collectives
from horovod.core.handles import integers, submit_and_wait
from horovod.core.operations import Dtype, Intent

if TYPE_CHECKING:
    from horovod import _native

# What ``horovod.numpy`` exports. Other bindings use the adapter itself, too.
__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]

Array = NDArray[Any]

DTYPES = {
    np.dtype(np.uint8): Dtype.UINT8,
    np.dtype(np.int8): Dtype.INT8,
    np.dtype(np.int16): Dtype.INT16,
    np.dtype(np.uint16): Dtype.UINT16,
    np.dtype(np.int32): Dtype.INT32,
    np.dtype(np.int64): Dtype.INT64,
    np.dtype(np.float16): Dtype.FLOAT16,
    np.dtype(np.float32): Dtype.FLOAT32,
    np.dtype(np.float64): Dtype.FLOAT64,
    np.dtype(np.bool_): Dtype.BOOL,
}


class NumpyAdapter:
    """``handles.Adapter`` over array addresses."""

    def submit(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: Array,
        output: Array | None,
        intent: Intent,
        splits: Sequence[int] = (),
    ) -> int:
        address, shape, dtype = _describe(tensor)
        out = 0 if output is None else _writable(output)
        return engine.submit(operation, name, address, out, shape, dtype, intent, splits)

    def run(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: Array,
        output: Array | None,
        splits: Sequence[int] = (),
    ) -> list[_native.Output]:
        return submit_and_wait(self, engine, operation, name, tensor, output, splits)

    def submit_batch(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        names: list[str],
        tensors: list[Array],
        intent: Intent,
    ) -> int:
        return engine.submit_many(operation, names, describe_all(tensors, tensors), intent)

    def submit_group(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensors: list[Array],
        outputs: list[Array] | None,
        intent: Intent,
    ) -> int:
        return engine.submit_group(operation, name, describe_all(tensors, outputs), intent)

    def empty_like(self, tensor: Array) -> Array:
        _describe(tensor)
        return np.empty(tensor.shape, tensor.dtype)

    def dtype_of(self, tensor: Array) -> Dtype:
        return DTYPES[tensor.dtype]

    def from_output(self, output: _native.Output, dtype: Dtype) -> Array:
        if dtype == Dtype.BFLOAT16:
            bits: Array = output.as_numpy(Dtype.INT16)
            return bits.view("bfloat16")
        array: Array = output.as_numpy(dtype)
        return array

    def split_list(self, splits: Any) -> list[int]:
        if isinstance(splits, np.ndarray) and (splits.dtype != np.int32 or splits.ndim != 1):
            raise ValueError(
                f"alltoall: splits must be an int32 vector, found {splits.ndim} dimensions of "
                f"{splits.dtype}"
            )
        return integers(splits)


def _describe(array: Array) -> tuple[int, list[int], int]:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"expected a NumPy array, found {type(array).__name__}")
    dtype = DTYPES.get(array.dtype)
    if dtype is None:
        dtype = _dtype_of_others(array.dtype)
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous; pass np.ascontiguousarray(array)")
    return array.ctypes.data, list(array.shape), int(dtype)


def _dtype_of_others(dtype: np.dtype[Any]) -> Dtype:
    # NumPy has no bfloat16 of its own; TensorFlow and JAX give it the one of ml_dtypes.
    if dtype.name != "bfloat16":
        raise ValueError(f"the array's dtype {dtype} is not supported")
    return DTYPES.setdefault(dtype, Dtype.BFLOAT16)


def describe_all(
    arrays: list[Array], outputs: list[Array] | None
) -> list[tuple[int, int, list[int], int]]:
    """Input and output address, shape and dtype of each, for the engine; ``outputs`` None: 0."""
    described = []
    for position, array in enumerate(arrays):
        address, shape, dtype = _describe(array)
        out = 0 if outputs is None else _writable(outputs[position])
        described.append((address, out, shape, dtype))
    return described


def _writable(array: Array) -> int:
    if not array.flags.writeable:
        raise ValueError("the array is read-only; the result cannot be written into it")
    return array.ctypes.data


_collectives: Collectives[Array] = Collectives(NumpyAdapter())

allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
allreduce = _collectives.allreduce
allreduce_ = _collectives.allreduce_
allreduce_async = _collectives.allreduce_async
allreduce_async_ = _collectives.allreduce_async_
allreduce_batch_async_ = _collectives.allreduce_batch_async_
alltoall = _collectives.alltoall
alltoall_async = _collectives.alltoall_async
broadcast = _collectives.broadcast
broadcast_ = _collectives.broadcast_
broadcast_async = _collectives.broadcast_async
broadcast_async_ = _collectives.broadcast_async_
grouped_allgather = _collectives.grouped_allgather
grouped_allgather_async = _collectives.grouped_allgather_async
grouped_allreduce = _collectives.grouped_allreduce
grouped_allreduce_ = _collectives.grouped_allreduce_
grouped_allreduce_async = _collectives.grouped_allreduce_async
grouped_allreduce_async_ = _collectives.grouped_allreduce_async_
grouped_reducescatter = _collectives.grouped_reducescatter
grouped_reducescatter_async = _collectives.grouped_reducescatter_async
poll = _collectives.poll
reducescatter = _collectives.reducescatter
reducescatter_async = _collectives.reducescatter_async
synchronize = _collectives.synchronize
