"""The collectives: one definition for all frameworks, written against a small tensor adapter.

A binding supplies an ``Adapter`` and exports the methods of ``Collectives``. An operation is
started by ``*_async`` and ended by ``synchronize``; the ``*_`` forms write into the tensor they
are given. Every rank must start the same operations under the same names, in any order. Errors:

    ValueError             the call cannot be right (dtype, layout, root, name in flight)
    MismatchError          ranks disagree; raised on every rank, the engine stays usable
    HorovodInternalError   a rank was lost or shut down; only a new ``init`` helps
"""

from __future__ import annotations

import warnings
from enum import IntEnum
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from horovod import _native
from horovod.errors import HorovodInternalError
from horovod.world import engine

__all__ = [
    "Adapter",
    "Average",
    "Collectives",
    "Dtype",
    "Intent",
    "Kind",
    "Max",
    "Min",
    "Product",
    "Sum",
    "barrier",
    "resolve_op",
    "submit_and_wait",
]

# Reduce operations; the numbers are part of the public interface.
Average = 0
Sum = 1
Min = 3
Max = 4
Product = 5


class Kind(IntEnum):
    """Collectives, numbered as in ``engine/control/request.h``."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    BARRIER = 3


class Intent(IntEnum):
    """What the caller does next, numbered as in ``engine/runtime/engine.h``."""

    COMPUTE = 0
    WAIT = 1
    MORE = 2


class Dtype(IntEnum):
    """Element types, numbered as in ``engine/core/dtype.h``."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    FLOAT32 = 6
    FLOAT64 = 7
    BOOL = 8
    BFLOAT16 = 9


T = TypeVar("T")


class Adapter(Protocol[T]):
    """What a framework must say about its tensors."""

    def submit(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: T,
        output: T | None,
        intent: Intent,
    ) -> int:
        """Hand ``tensor`` to the engine without a copy; ``output`` None: the engine allocates."""

    def run(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: T,
        output: T | None,
    ) -> list[_native.Output]:
        """Like ``submit``, but wait until it is done; returns what the engine allocated."""

    def submit_batch(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        names: list[str],
        tensors: list[T],
        intent: Intent,
    ) -> int:
        """Submit many tensors in place under full names; one handle for all."""

    def empty_like(self, tensor: T) -> T:
        """A dense tensor of the same shape, dtype and device."""

    def from_output(self, output: _native.Output, tensor: T) -> T:
        """The engine's memory as a tensor of ``tensor``'s dtype."""


# What must stay alive until an operation is done, and what its result is made of: the engine that
# runs it, its input and its output (None: allocated by the engine). A plain tuple, made per call.
_Flight = tuple[_native.Engine, Any, Any]

# Flights that a signal handler's exception cut off from their handle: the engine may still read and
# write these tensors, so they stay for good.
_cut_off: list[_Flight] = []


class Collectives(Generic[T]):
    """All collectives over one framework's tensors. Handles are plain ints, valid once."""

    def __init__(self, adapter: Adapter[T]) -> None:
        self._adapter = adapter
        self._flights: dict[int, _Flight] = {}

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Start reducing ``tensor`` over all ranks into a new tensor; returns a handle.

        Args:
            tensor: any shape, the same on all ranks, contiguous; uint8, int8, int16, int32, int64,
                float16, bfloat16, float32, float64 or bool (Sum and Max: or; Product and Min: and).
            average: deprecated, use ``op``.
            name: the same on all ranks, free again once synchronised; default: the n-th unnamed
                allreduce of each rank belong together.
            op: Average (default), Sum, Min, Max or Product; the same on all ranks.
            prescale_factor: multiplies every input before the reduction.
            postscale_factor: multiplies the result.
        """
        if average is not None:
            op = resolve_op(average, op)
        operation = _allreduce(op, prescale_factor, postscale_factor)
        output = self._adapter.empty_like(tensor)
        return self.start(operation, _full("allreduce.", name), tensor, output)

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Like ``allreduce_async``, with the result in ``tensor`` itself."""
        if average is not None:
            op = resolve_op(average, op)
        operation = _allreduce(op, prescale_factor, postscale_factor)
        return self.start(operation, _full("allreduce.", name), tensor, tensor)

    def allreduce_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """Reduce ``tensor`` over all ranks in place, and return it; see ``allreduce_async``."""
        if average is not None:
            op = resolve_op(average, op)
        operation = _allreduce(op, prescale_factor, postscale_factor)
        self._adapter.run(engine(), operation, _full("allreduce.", name), tensor, tensor)
        return tensor

    def allreduce(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """Reduce ``tensor`` over all ranks into a new tensor; see ``allreduce_async``."""
        if average is not None:
            op = resolve_op(average, op)
        operation = _allreduce(op, prescale_factor, postscale_factor)
        output = self._adapter.empty_like(tensor)
        self._adapter.run(engine(), operation, _full("allreduce.", name), tensor, output)
        return output

    def allreduce_batch_async_(
        self,
        tensors: list[T],
        names: list[str],
        op: int,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        intent: Intent = Intent.COMPUTE,
    ) -> int:
        """Start many allreduces in place at once; one handle for all, whose result is ``tensors``.

        Each tensor is an operation of its own, under its full name (``allreduce.<name>``), so ranks
        may batch differently. ``intent`` says what the caller does next.
        """
        operation = _allreduce(op, prescale_factor, postscale_factor)
        current = engine()
        flight = (current, tensors, tensors)
        try:
            handle = self._adapter.submit_batch(current, operation, names, tensors, intent)
            self._flights[handle] = flight
        except (ValueError, HorovodInternalError):
            raise  # refused: nothing is under way
        except BaseException:
            _cut_off.append(flight)
            raise
        return handle

    def allgather_async(self, tensor: T, name: str | None = None) -> int:
        """Start joining the ranks' tensors along the first dimension; returns a handle.

        Args:
            tensor: [n, ...], contiguous; n may differ between ranks and be 0, the rest not.
            name: as for ``allreduce_async``.
        """
        return self.start(_ALLGATHER, _full("allgather.", name), tensor, None)

    def allgather(self, tensor: T, name: str | None = None) -> T:
        """All ranks' tensors joined along the first dimension; see ``allgather_async``."""
        outputs = self._adapter.run(engine(), _ALLGATHER, _full("allgather.", name), tensor, None)
        return self._adapter.from_output(outputs[0], tensor)

    def broadcast_async(self, tensor: T, root_rank: int, name: str | None = None) -> int:
        """Start sending ``root_rank``'s tensor to all ranks, into a new tensor; returns a handle.

        Args:
            tensor: any shape and dtype, the same on all ranks, contiguous.
            root_rank: the same on all ranks.
            name: as for ``allreduce_async``.
        """
        output = self._adapter.empty_like(tensor)
        return self.start(_broadcast(root_rank), _full("broadcast.", name), tensor, output)

    def broadcast_async_(self, tensor: T, root_rank: int, name: str | None = None) -> int:
        """Like ``broadcast_async``, with the result in ``tensor`` itself."""
        return self.start(_broadcast(root_rank), _full("broadcast.", name), tensor, tensor)

    def broadcast_(self, tensor: T, root_rank: int, name: str | None = None) -> T:
        """Overwrite ``tensor`` with ``root_rank``'s, and return it; see ``broadcast_async``."""
        operation = _broadcast(root_rank)
        self._adapter.run(engine(), operation, _full("broadcast.", name), tensor, tensor)
        return tensor

    def broadcast(self, tensor: T, root_rank: int, name: str | None = None) -> T:
        """A new tensor with ``root_rank``'s values; see ``broadcast_async``."""
        operation = _broadcast(root_rank)
        output = self._adapter.empty_like(tensor)
        self._adapter.run(engine(), operation, _full("broadcast.", name), tensor, output)
        return output

    def poll(self, handle: int) -> bool:
        """Whether the operation is done, so that ``synchronize`` does not block."""
        flight = self._flights.get(handle)
        return flight is None or flight[0].poll(handle)

    def synchronize(self, handle: int) -> T | None:
        """Wait for the operation and return its result; None for a handle that was used before.

        Raises:
            MismatchError: ranks disagree about this operation.
            HorovodInternalError: a rank was lost, or the engine shut down.
        """
        flight = self._flights.get(handle)
        if flight is None:
            return None
        current, tensor, output = flight
        try:
            outputs = current.wait(handle)
        except BaseException:
            # After Ctrl-C, or what another signal handler raised, the operation is still under way
            # and its buffers must stay.
            if not current.contains(handle):
                self._flights.pop(handle, None)
            raise
        self._flights.pop(handle, None)
        if output is None:
            return self._adapter.from_output(outputs[0], tensor)
        result: T = output
        return result

    def start(
        self,
        operation: _native.Operation,
        full_name: str | None,
        tensor: T,
        output: T | None,
        intent: Intent = Intent.COMPUTE,
    ) -> int:
        """Submit one operation and keep what it needs alive; all ``*_async`` methods end here."""
        current = engine()
        flight = (current, tensor, output)
        try:
            handle = self._adapter.submit(current, operation, full_name, tensor, output, intent)
            self._flights[handle] = flight
        except (ValueError, HorovodInternalError):
            raise  # refused: nothing is under way
        except BaseException:
            _cut_off.append(flight)
            raise
        return handle


def submit_and_wait(
    adapter: Adapter[T],
    engine: _native.Engine,
    operation: _native.Operation,
    name: str | None,
    tensor: T,
    output: T | None,
) -> list[_native.Output]:
    """``Adapter.run`` for adapters without a native form of it."""
    handle: int | None = None
    try:
        handle = adapter.submit(engine, operation, name, tensor, output, Intent.WAIT)
        return engine.wait(handle)
    except (ValueError, HorovodInternalError):
        raise
    except BaseException:
        if handle is None or engine.contains(handle):
            _cut_off.append((engine, tensor, output))
        raise


def barrier() -> None:
    """Wait until every rank has called it."""
    current = engine()
    current.wait(current.submit(_BARRIER, None, 0, 0, [], Dtype.UINT8, Intent.WAIT))


def resolve_op(average: bool | None, op: int | None) -> int:
    """The reduce operation meant by ``op`` and the deprecated ``average`` argument.

    Raises:
        ValueError: both are given, or ``op`` is not one of Average, Sum, Min, Max and Product.
    """
    if average is None:
        op = Average if op is None else op
        if op in _OPS:
            return op
        raise ValueError(f"op={op!r}: expected Average, Sum, Min, Max or Product")
    if op is not None:
        raise ValueError("give op or average, not both; op replaces average")
    warnings.warn("average is deprecated; use op=Average or op=Sum", DeprecationWarning, 3)
    return Average if average else Sum


def _full(prefix: str, name: str | None) -> str | None:
    """The name under which ranks meet; None lets the engine number it."""
    return None if name is None else prefix + name


_OPS = frozenset({Average, Sum, Min, Max, Product})
_ALLGATHER = _native.Operation(Kind.ALLGATHER)
_BARRIER = _native.Operation(Kind.BARRIER)


@lru_cache(maxsize=256)
def _allreduce(
    op: int | None, prescale_factor: float, postscale_factor: float
) -> _native.Operation:
    op = resolve_op(None, op)
    return _native.Operation(Kind.ALLREDUCE, op, 0, prescale_factor, postscale_factor)


@lru_cache(maxsize=256)
def _broadcast(root_rank: int) -> _native.Operation:
    return _native.Operation(Kind.BROADCAST, root=root_rank)
