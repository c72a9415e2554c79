"""Arrays of MXNet for the engine: collectives as operations of MXNet's engine.

Everything here returns at once. Errors before that are Python exceptions. Later ones are raised
where MXNet raises its own errors: as ``MXNetError``, when the program waits for a result.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from horovod.core.calls import Call
from horovod.core.operations import Dtype
from horovod.core.world import at_end, engine, shutdown
from horovod.mxnet.plugin import PluginCall, Results, push

_handle = mx.nd.NDArray.handle  # where an NDArray keeps its handle; ours keep an Arrival before


class Arrival:
    """The end of an operation, for all arrays that it makes; their shapes are known only then.

    Such an array is an ``NDArray`` from the start. The first use of it (shape, values, an
    operation) waits. From then on it is like any other.
    """

    def __init__(self, done: Any, results: Results) -> None:
        """``done``: an array that MXNet takes for written by the operation."""
        self._done = done
        self._results = results
        self._failure: Exception | None = None
        self._lock = threading.Lock()

    def array(self, index: int, like: Any) -> Any:
        """The result number ``index``, an array of the same class as ``like``."""
        kind = _ArrivingNumpy if isinstance(like, mx.np.ndarray) else _ArrivingArray
        array: Any = kind.__new__(kind)
        array.writable = True
        _handle.__set__(array, (self, index))
        return array

    def bring(self, array: Any) -> None:
        """Make ``array`` an ordinary one; waits for it.

        Raises:
            MXNetError: the operation failed.
        """
        with self._lock:
            place = _handle.__get__(array)
            if not isinstance(place, tuple):  # another thread was first
                return
            self._wait()
            _handle.__set__(array, self._results.take(place[1]))
            array.__class__ = array.arrived_class

    def _wait(self) -> None:
        if self._failure is None:
            try:
                self._done.wait_to_read()
            except mx.MXNetError as error:  # MXNet says so only once
                self._failure = error
        if self._failure is not None:
            raise self._failure.with_traceback(None)


class _ArrivingHandle:
    """The attribute ``handle`` of an array that is not there yet."""

    def __get__(self, array: Any, owner: type) -> Any:
        place = _handle.__get__(array)
        if isinstance(place, tuple):
            place[0].bring(array)
        return _handle.__get__(array)


class _Arriving:
    __slots__ = ()
    handle = _ArrivingHandle()

    def __del__(self) -> None:
        """Nothing to free: it was never used."""


class _ArrivingArray(_Arriving, mx.nd.NDArray):  # type: ignore[misc]
    __slots__ = ()
    arrived_class = mx.nd.NDArray


class _ArrivingNumpy(_Arriving, mx.np.ndarray):  # type: ignore[misc]
    __slots__ = ()
    arrived_class = mx.np.ndarray


# The dtype of an NDArray is a class, that of an array of mx.np a dtype.
_DTYPES = {
    form: Dtype[name.upper()]
    for name in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")
    for form in (getattr(np, name), np.dtype(name))
}

# The number of unnamed operations, by prefix and process set. MXNet may start operations in another
# order on each rank, so they are numbered when they are called.
_unnamed: Counter[tuple[str, int | None]] = Counter()
# An array for each name and process set. MXNet believes that every such operation writes it, so it
# runs these operations one after the other, in the order of their calls.
_orders: dict[tuple[str, int | None], Any] = {}


def _forget(_: Any) -> None:
    _unnamed.clear()
    _orders.clear()


at_end(_forget)


def _end_quietly() -> None:
    # Otherwise MXNet complains at the exit about operations that end with the world.
    shutdown()
    with contextlib.suppress(mx.MXNetError):
        mx.nd.waitall()


atexit.register(_end_quietly)


def make_call(call: Call, arrays: Sequence[Any], name: str | None, priority: int = 0) -> PluginCall:
    """A checked collective as the plugin takes it, without its arrays.

    Raises:
        ValueError: one of the arrays is no dense ``NDArray`` of a dtype that the engine knows, or
            ``init`` was not called.
    """
    for array in arrays:
        _check_array(call.title, array)
    engine()
    number, prefix = call.process_set, call.prefix
    full_name = f"{prefix}.{name}"
    if name is None:
        full_name = f"{prefix}.noname.{_unnamed[prefix, number]}"
        _unnamed[prefix, number] += 1
    fields = (call.kind, call.op, call.root_rank, number, call.prescale, call.postscale)
    plugin_call = PluginCall(full_name.encode(), *fields, priority, call.is_group, call.link_format)
    if name is not None:
        if (full_name, number) not in _orders:
            _orders[full_name, number] = _marker()
        plugin_call.order = _orders[full_name, number]
    return plugin_call


def _check_array(title: str, array: Any) -> None:
    if not isinstance(array, mx.nd.NDArray):
        raise ValueError(f"{title}: expected an NDArray, found {type(array).__name__}")
    if isinstance(array, mx.nd.sparse.BaseSparseNDArray):
        raise ValueError(f"{title}: the array is sparse; use array.tostype('default')")
    if array.dtype not in _DTYPES:
        raise ValueError(f"{title}: the array's dtype {np.dtype(array.dtype)} is not supported")


def start(call: PluginCall, arrays: Sequence[Any]) -> list[Any]:
    """New arrays of the same shapes, with the results of a call."""
    inputs = _on_host(arrays)
    outputs = [_empty_like(array) for array in inputs]
    _push(call, inputs, outputs)
    return _beside(arrays, inputs, outputs)


def start_in_place(call: PluginCall, arrays: Sequence[Any]) -> None:
    """Results of a call in the arrays themselves."""
    inputs = _on_host(arrays)
    _push(call, inputs, inputs)
    for array, result in zip(arrays, inputs, strict=True):
        if result is not array:
            result.copyto(array)


def start_sized(
    call: PluginCall, arrays: Sequence[Any], extra: int = 0, splits: Sequence[int] = ()
) -> list[Any]:
    """New arrays of shapes that are known when the call is done.

    Args:
        call: its kind says what the arrays are.
        arrays: the inputs; there is one result for each.
        extra: how many results there are besides.
        splits: of an alltoall.
    """
    done = _marker()
    inputs = _on_host(arrays)
    arrival = Arrival(done, _push(call, inputs, None, [done], splits))
    like = [*arrays, *[arrays[0]] * extra]
    results = [arrival.array(index, array) for index, array in enumerate(like)]
    return _beside(arrays, inputs, results) + results[len(arrays) :]


def _push(
    call: PluginCall,
    arrays: Sequence[Any],
    outputs: Sequence[Any] | None,
    written: Sequence[Any] = (),
    splits: Sequence[int] = (),
) -> Any:
    dtypes = [_DTYPES[array.dtype] for array in arrays]
    orders = written if call.order is None else [*written, call.order]
    call.give(arrays, dtypes, outputs, splits, orders)
    return push(call)


def _is_on_host(array: Any) -> bool:
    return bool(array.ctx.device_type != "gpu")


def _on_host(arrays: Sequence[Any]) -> list[Any]:
    """The arrays where the engine can read them: themselves, or copies that MXNet makes in time."""
    return [array if _is_on_host(array) else array.copyto(mx.cpu()) for array in arrays]


def _beside(arrays: Sequence[Any], inputs: Sequence[Any], results: list[Any]) -> list[Any]:
    """The results on the devices of ``arrays``."""
    return [
        result if host is array else result.copyto(array.ctx)
        for array, host, result in zip(arrays, inputs, results, strict=False)
    ]


def _marker() -> Any:
    """An array whose contents are not used."""
    return mx.nd.empty((1,), ctx=mx.cpu())


def _empty_like(array: Any) -> Any:
    module = mx.np if isinstance(array, mx.np.ndarray) else mx.nd
    return module.empty(array.shape, dtype=array.dtype, ctx=array.ctx)
