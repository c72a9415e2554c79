"""NumPy arrays for the engine: the smallest adapter, and the model for another framework's.

``ArrayCalls`` runs a ``Call`` and waits: for bindings whose tensors NumPy can view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from horovod.core.calls import Call
from horovod.core.collectives import Collectives
from horovod.core.handles import (
    PendingOperations,
    describe_all,
    integers,
    named_error,
    submit_and_wait,
    wait_for_all,
)
from horovod.core.operations import COMPLEX, Dtype, Intent, Result

if TYPE_CHECKING:
    from horovod import _native

# The exports of ``horovod.numpy``. Other bindings also use the adapter itself.
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

# NumPy has no bfloat16 of its own: see ``_number_of_others``.
DTYPES: dict[np.dtype[Any], Dtype] = {
    np.dtype(kind.name.lower()): kind for kind in Dtype if kind is not Dtype.BFLOAT16
}

# Of complex numbers.
_PARTS = {np.dtype("complex64"): Dtype.FLOAT32, np.dtype("complex128"): Dtype.FLOAT64}


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
        try:
            address, shape, dtype = _describe(tensor)
            out = 0 if output is None else _writable(output)
        except ValueError as error:
            raise named_error(error, operation, name) from None
        return engine.submit(operation, name, address, out, shape, dtype, intent, splits)

    run: Callable[..., list[_native.Output]] = submit_and_wait

    def submit_batch(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        names: list[str],
        tensors: list[Array],
        intent: Intent,
    ) -> int:
        described = _describe_all(tensors, tensors, operation, names, is_group=False)
        return engine.submit_many(operation, names, described, intent)

    def submit_group(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensors: list[Array],
        outputs: list[Array] | None,
        intent: Intent,
        members: Sequence[str] = (),
    ) -> int:
        described = _describe_all(tensors, outputs, operation, repeat(name), is_group=True)
        return engine.submit_group(operation, name, described, intent, members=list(members))

    def empty_like(self, tensor: Array) -> Array:
        return np.empty_like(tensor, order="C", subok=False)

    def from_output(self, output: _native.Output, dtype: Dtype) -> Array:
        if dtype == Dtype.BFLOAT16:
            bits: Array = output.as_numpy(Dtype.INT16)
            return bits.view("bfloat16")
        array: Array = output.as_numpy(dtype)
        return array

    def result(self, output: _native.Output, tensor: Array) -> Array:
        parts = _PARTS.get(tensor.dtype)
        if parts is None:
            return self.from_output(output, DTYPES[tensor.dtype])
        pairs = self.from_output(output, parts)
        return pairs.view(tensor.dtype).reshape(pairs.shape[:-1])

    def split_list(self, splits: Any) -> list[int]:
        if isinstance(splits, np.ndarray) and (splits.dtype != np.int32 or splits.ndim != 1):
            raise ValueError(
                f"alltoall: splits must be an int32 vector, found {splits.ndim} dimensions of "
                f"{splits.dtype}"
            )
        return integers(splits)


def _describe(array: Array) -> tuple[int, list[int], int]:
    if not isinstance(array, np.ndarray):
        is_like = isinstance(array, (int, float, list, tuple))
        hint = "; np.asarray makes one of it" if is_like else ""
        raise ValueError(f"expected a NumPy array, found {type(array).__name__}{hint}")
    dtype = int(DTYPES.get(array.dtype, -1))
    if dtype < 0:
        dtype = _number_of_others(array.dtype)
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous; pass np.ascontiguousarray(array)")
    return array.ctypes.data, list(array.shape), dtype


def _number_of_others(dtype: np.dtype[Any]) -> int:
    if (parts := _PARTS.get(dtype)) is not None:
        return parts | COMPLEX
    # TensorFlow and JAX give NumPy the bfloat16 of ml_dtypes.
    if dtype.name != "bfloat16":
        raise ValueError(f"the array's dtype {dtype} is not supported")
    return DTYPES.setdefault(dtype, Dtype.BFLOAT16)


def _writable(array: Array) -> int:
    if not array.flags.writeable:
        raise ValueError("the array is read-only; the result cannot be written into it")
    return array.ctypes.data


_describe_all = partial(describe_all, _describe, _writable)
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
        errors: Sequence[Array | None] = (),
    ) -> list[Array]:
        """The results of a call; blocks until they are there.

        Args:
            call: which collective.
            names: full names: of a group its own, then its arrays' or none; else one for each
                array. None lets the engine number an operation.
            arrays: the inputs.
            splits: of an alltoall: rows for each rank of the set; none for equal parts.
            errors: of a group in a low-bit format: where the errors of each array go, float32.

        Returns:
            A result for each array; of an alltoall also how many rows came from each rank, int32.
        """
        outputs = None
        if call.keeps_shape:
            outputs = [self._adapter.empty_like(array) for array in arrays]
        is_exchange = call.row.result is Result.EXCHANGED_ROWS
        if (is_exchange or None in names) and not call.is_group:
            finish = self._exchanged if is_exchange else self._result
            given: Sequence[Array | None] = outputs or [None] * len(arrays)
            started = (
                self._pending.start(call.operation, name, array, output, finish, splits)
                for name, array, output in zip(names, arrays, given, strict=True)
            )
            found = wait_for_all(started, self._pending.synchronize)
            return [result for results in found for result in results]
        of = repeat(names[0]) if call.is_group else names
        submit = methodcaller(
            "submit_group" if call.is_group else "submit_many",
            call.operation,
            names[0] if call.is_group else list(names),
            _describe_all(arrays, outputs, call.operation, of, is_group=call.is_group),
            Intent.WAIT,
            **(_group_options(names, errors) if call.is_group else {}),
        )
        kept: Any = (arrays, errors) if errors else arrays  # ``_results`` needs no inputs then
        handle = self._pending.start_many(submit, (), kept, outputs, self._results)
        results: list[Array] = self._pending.synchronize(handle)
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
        return [adapter.result(output, array) for output, array in pairs]

    def _exchanged(self, outputs: list[_native.Output], array: Array, _: Any) -> list[Array]:
        counts = self._adapter.from_output(outputs[1], Dtype.INT32)
        return [*self._results(outputs[:1], [array], None), counts]


def _group_options(
    names: Sequence[str | None], errors: Sequence[Array | None]
) -> dict[str, list[Any]]:
    addresses = [0 if error is None else error.ctypes.data for error in errors]
    return {"members": list(names[1:]), "errors": addresses}
