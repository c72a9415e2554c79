"""Collectives on arrays that are there: through NumPy views of them, without copies on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from horovod.core.operations import Result
from horovod.jax.call import ProgramCall
from horovod.numpy.adapter import NumpyAdapter
from horovod.numpy.calls import ArrayCalls

Array = NDArray[Any]

_ALIGNMENT = 64  # what JAX wants of memory that it is to use without a copy


class _AligningAdapter(NumpyAdapter):
    def empty_like(self, tensor: Array) -> Array:
        bytes_ = np.empty(tensor.nbytes + _ALIGNMENT, np.uint8)
        begin = -bytes_.ctypes.data % _ALIGNMENT
        return bytes_[begin : begin + tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)


_calls = ArrayCalls(_AligningAdapter())


def run(*arrays: Any, call: ProgramCall) -> list[jax.Array]:
    """A call on arrays of JAX that are there, or are on their way; blocks until it is done.

    Results lie where JAX puts arrays. A result that has the shape of an input which is spread over
    several devices of this process is spread alike.
    """
    results = run_on_host(call, arrays)
    if not call.keeps_shape:
        return [jnp.asarray(result) for result in results]
    return [_place_like(array, result) for array, result in zip(arrays, results, strict=True)]


def run_on_host(call: ProgramCall, arrays: Sequence[Any]) -> list[Array]:
    """A call on anything that NumPy can view: a result for each array."""
    results = _run(call, arrays)
    if call.row.result is Result.EXCHANGED_ROWS:
        results = results[::2]  # between them are the row counts
    return [np.zeros_like(result) for result in results] if call.is_zeroed else results


def _run(call: ProgramCall, arrays: Sequence[Any], splits: Sequence[int] = ()) -> list[Array]:
    on_host = [np.asarray(array, order="C") for array in arrays]
    return _calls.run(call, call.full_names(), on_host, splits)


def _place_like(array: Any, result: Array) -> jax.Array:
    if isinstance(array, jax.Array) and array.sharding.num_devices > 1:
        return jax.device_put(result, array.sharding)
    return jnp.asarray(result)


def run_alltoall(call: ProgramCall, array: Any, splits: list[int]) -> tuple[jax.Array, jax.Array]:
    """The rows received, and how many came from each rank of the set."""
    received, counts = _run(call, [array], splits)
    return jnp.asarray(received), jnp.asarray(counts)
