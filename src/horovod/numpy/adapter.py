"""NumPy arrays for the engine. Whoever adds a framework starts by reading this file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod import _native
from horovod.operations import Collectives, Dtype, Intent, submit_and_wait

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "poll",
    "synchronize",
]

Array = NDArray[Any]

# numpy has no bfloat16 of its own.
_DTYPES = {
    np.dtype(np.uint8): Dtype.UINT8,
    np.dtype(np.int8): Dtype.INT8,
    np.dtype(np.int16): Dtype.INT16,
    np.dtype(np.int32): Dtype.INT32,
    np.dtype(np.int64): Dtype.INT64,
    np.dtype(np.float16): Dtype.FLOAT16,
    np.dtype(np.float32): Dtype.FLOAT32,
    np.dtype(np.float64): Dtype.FLOAT64,
    np.dtype(np.bool_): Dtype.BOOL,
}


class _NumpyAdapter:
    """``operations.Adapter`` over array addresses."""

    def submit(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: Array,
        output: Array | None,
        intent: Intent,
    ) -> int:
        address, shape, dtype = _describe(tensor)
        out = 0 if output is None else _writable(output)
        return engine.submit(operation, name, address, out, shape, dtype, intent)

    def run(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: Array,
        output: Array | None,
    ) -> list[_native.Output]:
        return submit_and_wait(self, engine, operation, name, tensor, output)

    def submit_batch(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        names: list[str],
        tensors: list[Array],
        intent: Intent,
    ) -> int:
        for tensor in tensors:
            _writable(tensor)
        described = [_describe(tensor) for tensor in tensors]
        return engine.submit_many(operation, names, described, intent)

    def empty_like(self, tensor: Array) -> Array:
        _describe(tensor)
        return np.empty(tensor.shape, tensor.dtype)

    def from_output(self, output: _native.Output, tensor: Array) -> Array:
        array: Array = output.as_numpy(_DTYPES[tensor.dtype])
        return array


def _describe(array: Array) -> tuple[int, list[int], int]:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"expected a NumPy array, found {type(array).__name__}")
    dtype = _DTYPES.get(array.dtype)
    if dtype is None:
        raise ValueError(f"the array's dtype {array.dtype} is not supported")
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous; pass np.ascontiguousarray(array)")
    return array.ctypes.data, list(array.shape), int(dtype)


def _writable(array: Array) -> int:
    if not array.flags.writeable:
        raise ValueError("the array is read-only; the result cannot be written into it")
    return array.ctypes.data


_collectives: Collectives[Array] = Collectives(_NumpyAdapter())

allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
allreduce = _collectives.allreduce
allreduce_ = _collectives.allreduce_
allreduce_async = _collectives.allreduce_async
allreduce_async_ = _collectives.allreduce_async_
broadcast = _collectives.broadcast
broadcast_ = _collectives.broadcast_
broadcast_async = _collectives.broadcast_async
broadcast_async_ = _collectives.broadcast_async_
poll = _collectives.poll
synchronize = _collectives.synchronize
