"""Operations in flight: what they keep alive, how they start and how they end.

``PendingOperations`` is the lower half of ``collectives.Collectives``: it hands a framework's
tensors to the engine through an ``Adapter``, holds them until the operation is done, and makes its
result. It is where a wait that is interrupted leaves everything valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from horovod.core.operations import Dtype, Intent
from horovod.core.world import at_end, engine
from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from horovod import _native

__all__ = ["Adapter", "PendingOperations", "integers", "submit_and_wait"]

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
        splits: Sequence[int] = (),
    ) -> int:
        """Hand ``tensor`` to the engine without a copy; ``output`` None: the engine allocates."""

    def run(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: T,
        output: T | None,
        splits: Sequence[int] = (),
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

    def submit_group(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensors: list[T],
        outputs: list[T] | None,
        intent: Intent,
    ) -> int:
        """Submit tensors that succeed or fail together, as one operation."""

    def empty_like(self, tensor: T) -> T:
        """A dense tensor of the same shape, dtype and device."""

    def dtype_of(self, tensor: T) -> Dtype:
        """Its element type."""

    def from_output(self, output: _native.Output, dtype: Dtype) -> T:
        """The engine's memory as a tensor."""

    def split_list(self, splits: Any) -> list[int]:
        """``splits`` of an alltoall as numbers; ValueError if it is no int32 vector."""


_COMPUTE = Intent.COMPUTE  # to look it up takes longer than to pass it

# What must stay alive until an operation is done, and how its result is made: the engine that runs
# it, its input, its output (None: allocated by the engine), and a function of the engine's outputs
# and those two (None: the result is the output). A plain tuple, made per call.
_Finish = Callable[["list[_native.Output]", Any, Any], Any]
_Flight = tuple["_native.Engine | _Finished", Any, Any, _Finish | None]

# Flights that a signal handler's exception cut off from their handle: the engine may still read and
# write these tensors, so they stay for good.
_cut_off: list[tuple[_native.Engine, Any, Any]] = []


class _Finished:
    """In place of the engine: the outputs of an operation that was done when its world ended."""

    def __init__(self, outputs: list[_native.Output]) -> None:
        self._outputs = outputs

    def poll(self, handle: int) -> bool:
        return True

    def contains(self, handle: int) -> bool:
        return False

    def wait(self, handle: int) -> list[_native.Output]:
        return self._outputs


class PendingOperations(Generic[T]):
    """Operations of one framework by handle. Handles are plain ints, valid once."""

    def __init__(self, adapter: Adapter[T]) -> None:
        self._adapter = adapter
        self._flights: dict[int, _Flight] = {}
        self._errors: dict[int, Exception] = {}  # of flights that ended with their world
        at_end(self._land_all)

    def poll(self, handle: int) -> bool:
        """Whether the operation is done, so that ``synchronize`` does not block."""
        flight = self._flights.get(handle)
        return flight is None or flight[0].poll(handle)

    def synchronize(self, handle: int) -> Any:
        """Wait for the operation and return its result; None for a handle that was used before.

        Raises:
            MismatchError: ranks disagree about this operation.
            HorovodInternalError: a rank was lost, or the engine shut down.
        """
        flight = self._flights.get(handle)
        if flight is None:
            if handle in self._errors:
                raise self._errors.pop(handle)
            return None
        current, tensor, output, finish = flight
        try:
            outputs = current.wait(handle)
        except BaseException:
            # After Ctrl-C, or what another signal handler raised, the operation is still under way
            # and its buffers must stay.
            if not current.contains(handle):
                self._flights.pop(handle, None)
            raise
        self._flights.pop(handle, None)
        return output if finish is None else finish(outputs, tensor, output)

    def _land_all(self, ended: _native.Engine) -> None:
        """Take results and errors out of a world that is over, for who may still ask for them."""
        for handle, flight in list(self._flights.items()):
            if flight[0] is not ended or not ended.poll(handle):
                continue
            try:
                outputs = ended.wait(handle)
            except (ValueError, HorovodInternalError) as error:
                self._errors[handle] = error.with_traceback(None)
                self._flights.pop(handle, None)  # another thread may have been first
            else:
                self._flights[handle] = (_Finished(outputs), *flight[1:])

    def _start(
        self,
        operation: _native.Operation,
        full_name: str | None,
        tensor: T,
        output: T | None,
        finish: _Finish | None,
        splits: Sequence[int] = (),
    ) -> int:
        # ``_start_many`` spelled out: a fifth of the time that submitting one tensor takes.
        current = engine()
        try:
            handle = self._adapter.submit(
                current, operation, full_name, tensor, output, _COMPUTE, splits
            )
            self._flights[handle] = (current, tensor, output, finish)
        except (ValueError, HorovodInternalError):
            raise  # refused: nothing is under way
        except BaseException:
            _cut_off.append((current, tensor, output))
            raise
        return handle

    def _start_group(
        self,
        operation: _native.Operation,
        full_name: str | None,
        tensors: list[T],
        outputs: list[T] | None,
        finish: _Finish | None,
        intent: Intent = Intent.COMPUTE,
    ) -> int:
        args = (operation, full_name, tensors, outputs, intent)
        return self._start_many(self._adapter.submit_group, args, tensors, outputs, finish)

    def _start_batch(
        self,
        operation: _native.Operation,
        full_names: list[str],
        tensors: list[T],
        finish: _Finish | None,
        intent: Intent,
    ) -> int:
        args = (operation, full_names, tensors, intent)
        return self._start_many(self._adapter.submit_batch, args, tensors, tensors, finish)

    def _start_many(
        self,
        submit: Callable[..., int],
        args: tuple[Any, ...],
        tensors: list[T],
        outputs: list[T] | None,
        finish: _Finish | None,
    ) -> int:
        current = engine()
        try:
            handle = submit(current, *args)
            self._flights[handle] = (current, tensors, outputs, finish)
        except (ValueError, HorovodInternalError):
            raise
        except BaseException:
            _cut_off.append((current, tensors, outputs))
            raise
        return handle

    def _given_all(self, _outputs: list[_native.Output], _tensors: Any, outputs: Any) -> Any:
        return tuple(outputs)

    def _allocated(self, outputs: list[_native.Output], tensor: T, _: Any) -> T:
        return self._adapter.from_output(outputs[0], self._adapter.dtype_of(tensor))

    def _allocated_all(self, outputs: list[_native.Output], tensors: list[T], _: Any) -> Any:
        adapter = self._adapter
        return tuple(
            adapter.from_output(output, adapter.dtype_of(tensor))
            for output, tensor in zip(outputs, tensors, strict=True)
        )


def submit_and_wait(
    adapter: Adapter[T],
    engine: _native.Engine,
    operation: _native.Operation,
    name: str | None,
    tensor: T,
    output: T | None,
    splits: Sequence[int] = (),
) -> list[_native.Output]:
    """``Adapter.run`` for adapters without a native form of it."""
    handle: int | None = None
    try:
        handle = adapter.submit(engine, operation, name, tensor, output, Intent.WAIT, splits)
        return engine.wait(handle)
    except (ValueError, HorovodInternalError):
        raise
    except BaseException:
        if handle is None or engine.contains(handle):
            _cut_off.append((engine, tensor, output))
        raise


def integers(splits: Any) -> list[int]:
    """Splits of an alltoall that are no tensor; ``ValueError`` if they are no integers."""
    try:
        return [index(split) for split in splits]
    except TypeError:
        raise ValueError(
            f"alltoall: splits must be an int32 vector or a list of integers, found {splits!r}"
        ) from None
