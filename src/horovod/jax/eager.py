"""Collectives on arrays that are there: through NumPy views of them, without copies on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from horovod import _native
from horovod.core.handles import PendingOperations
from horovod.core.operations import Dtype, Intent, Kind
from horovod.errors import HorovodInternalError
from horovod.jax.call import Call
from horovod.numpy.adapter import NumpyAdapter

__all__ = ["run", "run_alltoall", "run_on_host"]

Array = NDArray[Any]

_KEEP_SHAPE = (Kind.ALLREDUCE, Kind.BROADCAST)
_ALIGNMENT = 64  # what JAX wants of memory that it is to use without a copy


class _Adapter(NumpyAdapter):
    def empty_like(self, tensor: Array) -> Array:
        bytes_ = np.empty(tensor.nbytes + _ALIGNMENT, np.uint8)
        begin = -bytes_.ctypes.data % _ALIGNMENT
        return bytes_[begin : begin + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)


class _Calls(PendingOperations[Array]):
    def run(self, call: Call, arrays: list[Array]) -> list[Array]:
        """The results of a call; blocks until they are there."""
        operation, names = _operation(call), call.full_names()
        outputs = None
        if call.kind in _KEEP_SHAPE:
            outputs = [self._adapter.empty_like(array) for array in arrays]
        if not call.is_group:
            return self._run_each(operation, names, arrays, outputs)
        finish = self._allocated_all if outputs is None else self._given_all
        args = (operation, names[0], arrays, outputs, finish, Intent.WAIT)
        return list(self.synchronize(self._start_group(*args)))

    def _run_each(
        self,
        operation: _native.Operation,
        names: Sequence[str | None],
        arrays: list[Array],
        outputs: list[Array] | None,
    ) -> list[Array]:
        finish = self._allocated if outputs is None else None
        places: Sequence[Array | None] = outputs or [None] * len(arrays)
        handles: list[int] = []
        try:
            for name, array, output in zip(names, arrays, places, strict=True):
                handles.append(self._start(operation, name, array, output, finish))
        except (ValueError, HorovodInternalError):
            self._synchronize_all(handles)
            raise
        return self._synchronize_all(handles)

    def run_alltoall(self, call: Call, array: Array, splits: list[int]) -> tuple[Array, Array]:
        """The rows received, and how many came from whom."""
        (name,) = call.full_names()
        handle = self._start(_operation(call), name, array, None, self._exchanged, splits)
        received: tuple[Array, Array] = self.synchronize(handle)
        return received

    def _exchanged(self, outputs: list[_native.Output], array: Array, _: Any) -> Any:
        counts: Array = outputs[1].as_numpy(Dtype.INT32)
        return self._allocated(outputs, array, None), counts

    def _synchronize_all(self, handles: Sequence[int]) -> list[Array]:
        """Wait for all, also after a failure."""
        results, failure = [], None
        for handle in handles:
            try:
                results.append(self.synchronize(handle))
            except HorovodInternalError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return results


_calls = _Calls(_Adapter())


def run(*arrays: Any, call: Call) -> list[jax.Array]:
    """A call on arrays of JAX that are there, or are on their way; blocks until it is done.

    Results lie where JAX puts arrays, but for those of an input that is spread over several devices
    of this process: if they have its shape, they are spread alike.
    """
    results = run_on_host(call, arrays)
    if call.kind not in _KEEP_SHAPE:
        return [jnp.asarray(result) for result in results]
    return [_place_like(array, result) for array, result in zip(arrays, results, strict=True)]


def run_on_host(call: Call, arrays: Sequence[Any]) -> list[Array]:
    """A call on anything that NumPy can view."""
    results = _calls.run(call, [np.asarray(array, order="C") for array in arrays])
    return [np.zeros_like(result) for result in results] if call.is_zeroed else results


def _place_like(array: Any, result: Array) -> jax.Array:
    if isinstance(array, jax.Array) and array.sharding.num_devices > 1:
        return jax.device_put(result, array.sharding)
    return jnp.asarray(result)


def run_alltoall(call: Call, array: Any, splits: list[int]) -> tuple[jax.Array, jax.Array]:
    """An alltoall with the number of rows for each rank of the set."""
    received, counts = _calls.run_alltoall(call, np.asarray(array, order="C"), splits)
    return jnp.asarray(received), jnp.asarray(counts)


@lru_cache(maxsize=256)
def _plain_operation(
    kind: Kind, op: int, root: int, prescale: float, postscale: float, process_set: int
) -> _native.Operation:
    return _native.Operation(kind, op, root, prescale, postscale, process_set)


def _operation(call: Call) -> _native.Operation:
    return _plain_operation(
        call.kind, call.op, call.root_rank, call.prescale, call.postscale, call.process_set
    )
