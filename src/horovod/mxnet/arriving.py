"""Arrays whose shape is known when the collective that makes them is done.

Such an array is an ``NDArray`` from the start. The first use of it (shape, values, an operation)
waits. From then on it is like any other.
"""

from __future__ import annotations

import threading
from typing import Any

import mxnet as mx

from horovod.mxnet.plugin import Results

_handle = mx.nd.NDArray.handle  # where an NDArray keeps its handle; ours keep an Arrival before


class Arrival:
    """The end of an operation, for all arrays that it makes."""

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


class _ArrivingArray(mx.nd.NDArray):  # type: ignore[misc]
    __slots__ = ()
    handle = _ArrivingHandle()
    arrived_class = mx.nd.NDArray

    def __del__(self) -> None:
        """Nothing to free: it was never used."""


class _ArrivingNumpy(mx.np.ndarray):  # type: ignore[misc]
    __slots__ = ()
    handle = _ArrivingHandle()
    arrived_class = mx.np.ndarray

    def __del__(self) -> None:
        """Nothing to free: it was never used."""
