"""Collectives over NumPy arrays under names that are final, many at a time, for ``python_ops``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod import _native
from horovod.core.handles import PendingOperations
from horovod.core.operations import Dtype, Intent, Kind
from horovod.core.world import engine
from horovod.numpy.adapter import NumpyAdapter, describe_all

__all__ = ["Arrays", "run_alltoall", "run_join", "run_many"]

Array = NDArray[Any]
Arrays = list[Array]


class _ArrayFlights(PendingOperations[Array]):
    """``PendingOperations`` of whole nodes: started and waited for in one call."""

    def run_many(
        self,
        operation: _native.Operation,
        names: list[str],
        arrays: Arrays,
        outputs: Arrays | None,
        is_group: bool,
    ) -> Arrays:
        finish = self._allocated_all if outputs is None else self._given_all
        if is_group:
            args = (operation, names[0], arrays, outputs, finish, Intent.WAIT)
            return list(self.synchronize(self._start_group(*args)))
        named = (operation, names, arrays, outputs)
        return list(self.synchronize(self._start_many(_submit, named, arrays, outputs, finish)))

    def run_alltoall(
        self, operation: _native.Operation, name: str, array: Array, splits: list[int]
    ) -> Arrays:
        args = (operation, name, array, None, self._both, splits)
        return list(self.synchronize(self._start(*args)))

    def _both(self, outputs: list[_native.Output], array: Array, _: Any) -> Arrays:
        received = self._adapter.from_output(outputs[1], Dtype.INT32)
        return [self._allocated(outputs, array, None), received]


def run_many(
    operation: _native.Operation,
    names: Sequence[str],
    arrays: Arrays,
    is_group: bool,
    keeps_shape: bool,
) -> Arrays:
    """Run a group under its one name, or a batch of operations, and wait for all of it."""
    outputs = [np.empty(array.shape, array.dtype) for array in arrays] if keeps_shape else None
    return _flights.run_many(operation, list(names), arrays, outputs, is_group)


def run_alltoall(
    operation: _native.Operation, name: str, array: Array, splits: Array | None = None
) -> Arrays:
    """The rows received, and how many from whom."""
    return _flights.run_alltoall(operation, name, array, _rows(splits))


def run_join() -> Array:
    """Join, and wait for all others; the rank that was last."""
    operation = _native.Operation(Kind.JOIN)
    current = engine()
    outputs = current.wait(current.submit(operation, None, 0, 0, [], Dtype.UINT8, Intent.WAIT))
    last: Array = outputs[0].as_numpy(Dtype.INT32)
    return last.reshape(())


def _submit(
    current: _native.Engine,
    operation: _native.Operation,
    names: list[str],
    arrays: Arrays,
    outputs: Arrays | None,
) -> int:
    return current.submit_many(operation, names, describe_all(arrays, outputs), Intent.WAIT)


def _rows(splits: Array | None) -> list[int]:
    if splits is None:
        return []
    rows: list[int] = splits.tolist() if splits.ndim == 1 else []
    if not rows:  # to the engine the same as none given
        raise ValueError(
            "alltoall: splits must be an int32 vector with one entry for each rank, found shape "
            f"{list(splits.shape)}"
        )
    return rows


_flights = _ArrayFlights(NumpyAdapter())
