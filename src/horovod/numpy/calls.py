"""Runs a ``Call`` on NumPy arrays and waits: for bindings whose tensors NumPy can view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from horovod import _native
from horovod.core.calls import Call
from horovod.core.handles import PendingOperations
from horovod.core.operations import Dtype, Intent, Result
from horovod.errors import HorovodInternalError
from horovod.numpy.adapter import NumpyAdapter, describe_all

__all__ = ["ArrayCalls"]

Array = NDArray[Any]


class ArrayCalls:
    """Calls on arrays; ``adapter`` allocates results that have the shape of an input."""

    def __init__(self, adapter: NumpyAdapter) -> None:
        self._adapter = adapter
        self._pending = PendingOperations(adapter)

    def run(
        self,
        call: Call,
        names: Sequence[str | None],
        arrays: list[Array],
        splits: Sequence[int] = (),
    ) -> list[Array]:
        """The results of a call; blocks until they are there.

        Args:
            call: which collective.
            names: full names: of a group one, else one for each array; None lets the engine number
                an operation.
            arrays: the inputs.
            splits: of an alltoall: rows for each rank of the set; none for equal parts.

        Returns:
            A result for each array; of an alltoall also how many rows came from each rank, int32.
        """
        outputs = None
        if call.keeps_shape:
            outputs = [self._adapter.empty_like(array) for array in arrays]
        is_each = call.row.result is Result.EXCHANGED_ROWS or None in names
        if is_each and not call.is_group:
            return self._run_each(call, names, arrays, outputs, splits)
        submit, name = (_submit_group, names[0]) if call.is_group else (_submit_many, list(names))
        args = (call.operation, name, arrays, outputs)
        handle = self._pending.start_many(submit, args, arrays, outputs, self._results)
        results: list[Array] = self._pending.synchronize(handle)
        return results

    def _run_each(
        self,
        call: Call,
        names: Sequence[str | None],
        arrays: list[Array],
        outputs: list[Array] | None,
        splits: Sequence[int],
    ) -> list[Array]:
        finish = self._exchanged if call.row.result is Result.EXCHANGED_ROWS else self._result
        handles: list[int] = []
        failures: list[Exception] = []
        for position, (name, array) in enumerate(zip(names, arrays, strict=True)):
            output = None if outputs is None else outputs[position]
            args = (call.operation, name, array, output, finish, splits)
            try:
                handles.append(self._pending.start(*args))
            except (ValueError, HorovodInternalError) as error:
                failures.append(error)
                break
        return self._wait_for_all(handles, failures)

    def _wait_for_all(self, handles: list[int], failures: list[Exception]) -> list[Array]:
        """The results; after a failure waits for the others, too, and raises the first one."""
        results: list[Array] = []
        for handle in handles:
            try:
                results += self._pending.synchronize(handle)
            except HorovodInternalError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return results

    def _result(self, outputs: list[_native.Output], array: Array, output: Any) -> list[Array]:
        return self._results(outputs, [array], None if output is None else [output])

    def _results(
        self, outputs: list[_native.Output], arrays: list[Array], given: list[Array] | None
    ) -> list[Array]:
        if given is not None:
            return given
        adapter = self._adapter
        pairs = zip(outputs, arrays, strict=True)
        return [adapter.from_output(output, adapter.dtype_of(array)) for output, array in pairs]

    def _exchanged(self, outputs: list[_native.Output], array: Array, _: Any) -> list[Array]:
        counts = self._adapter.from_output(outputs[1], Dtype.INT32)
        return [*self._results(outputs[:1], [array], None), counts]


def _submit_group(
    engine: _native.Engine,
    operation: _native.Operation,
    name: str | None,
    arrays: list[Array],
    outputs: list[Array] | None,
) -> int:
    return engine.submit_group(operation, name, describe_all(arrays, outputs), Intent.WAIT)


def _submit_many(
    engine: _native.Engine,
    operation: _native.Operation,
    names: list[str],
    arrays: list[Array],
    outputs: list[Array] | None,
) -> int:
    return engine.submit_many(operation, names, describe_all(arrays, outputs), Intent.WAIT)
