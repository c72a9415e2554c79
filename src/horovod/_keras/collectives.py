"""Collectives over single values for scripts: numbers, lists, arrays, tensors, variables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod._keras.backends import backend_for
from horovod._keras.library import is_keras3
from horovod.core.compression import NoneCompressor
from horovod.core.operations import resolve_op
from horovod.numpy import adapter

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def allreduce(
    keras: Any,
    value: Any,
    name: str | None,
    average: bool | None,
    prescale_factor: float,
    postscale_factor: float,
    op: int | None,
    compression: Any,
) -> Any:
    """``value`` reduced over all ranks; see the fronts."""
    chosen = resolve_op(average, op)
    backend = backend_for(keras)
    array = _to_array(keras, value)
    if compression is not NoneCompressor:
        wire, context = compression.compress(backend.to_tensor(array))
        array = _to_array(keras, wire)
    adapter.allreduce_(array, None, name, chosen, prescale_factor, postscale_factor)
    if compression is NoneCompressor:
        return backend.to_tensor(array)
    return compression.decompress(backend.to_tensor(array), context)


def allgather(keras: Any, value: Any, name: str | None) -> Any:
    """The values of all ranks joined along the first dimension."""
    return backend_for(keras).to_tensor(adapter.allgather(_to_array(keras, value), name))


def broadcast(keras: Any, value: Any, root_rank: int, name: str | None) -> Any:
    """The value of ``root_rank``."""
    array = _to_array(keras, value)
    return backend_for(keras).to_tensor(adapter.broadcast_(array, root_rank, name))


def reducescatter(keras: Any, value: Any, name: str | None, op: int) -> Any:
    """This rank's rows of the reduced value."""
    return backend_for(keras).to_tensor(adapter.reducescatter(_to_array(keras, value), name, op))


def _to_array(keras: Any, value: Any) -> NDArray[Any]:
    """A copy of the value; Python numbers get the dtype that the backend would give them.

    Raises:
        ValueError: it is neither a number nor numbers.
    """
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value, order="C")
    if is_keras3(keras):
        found = keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(value))
    elif isinstance(value, bool | int | float | list | tuple):
        found = _default_dtype(np.asarray(value))
    else:
        found = keras.backend.get_value(value)
    array = np.array(found, order="C")
    if array.dtype.kind in "OSU":
        raise ValueError(f"expected a number or numbers, found {value!r}")
    return array


def _default_dtype(array: NDArray[Any]) -> NDArray[Any]:
    narrower: dict[str, Any] = {"float64": np.float32, "int64": np.int32}
    return array.astype(narrower.get(array.dtype.name, array.dtype))
