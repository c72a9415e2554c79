"""Pending operations: what stays alive until they are done, how they start and how they end.

``PendingOperations`` belongs to ``collectives.Collectives``. It gives a framework's tensors to the
engine through an ``Adapter``, holds them until the operation is done, and returns its result. After
an interrupted wait all buffers are still valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import index
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from horovod.core.operations import Dtype, Intent
from horovod.core.world import at_end, at_fork, engine
from horovod.errors import HorovodInternalError, ShutdownError

if TYPE_CHECKING:
    from horovod import _native

T = TypeVar("T")
H = TypeVar("H")
R = TypeVar("R")


class Adapter(Protocol[T]):
    """The functions that handle a framework's tensors."""

    def submit(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: T,
        output: T | None,
        intent: Intent,
        splits: Sequence[int] = (),
        /,
    ) -> int:
        """Give ``tensor`` to the engine without a copy; ``output`` None: the engine allocates."""

    def run(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: T,
        output: T | None,
        splits: Sequence[int] = (),
        /,
    ) -> list[_native.Output]:
        """Like ``submit``, but wait until it is done; returns what the engine allocated."""

    def submit_batch(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        names: list[str],
        tensors: list[T],
        intent: Intent,
        /,
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
        members: Sequence[str] = (),
        /,
    ) -> int:
        """Submit tensors that succeed or fail together, as one operation.

        ``members``: their names; none: they are not known.
        """

    def empty_like(self, tensor: T) -> T:
        """A dense tensor of the same shape, dtype and device."""

    def from_output(self, output: _native.Output, dtype: Dtype) -> T:
        """The engine's memory as a tensor."""

    def result(self, output: _native.Output, tensor: T) -> T:
        """The same, with the element type of ``tensor``."""

    def split_list(self, splits: Any) -> list[int]:
        """``splits`` of an alltoall as numbers; ValueError if it is no int32 vector."""


_COMPUTE = Intent.COMPUTE  # to look it up takes longer than to pass it

# Makes the result of an operation of the engine's outputs, the input and the output. None: the
# output is the result.
Finish = Callable[["list[_native.Output]", Any, Any], Any]
# The engine that runs an operation, its input, its output (None: allocated by the engine) and its
# ``Finish``. A plain tuple, because one is made for each call.
_Pending = tuple["_native.Engine | _Finished | _OfParent", Any, Any, Finish | None]

# Operations whose handle was lost to a signal handler's exception. The engine may still read and
# write these tensors, so they are never released.
_without_handle: list[tuple[_native.Engine, Any, Any]] = []


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


class _OfParent:
    """In place of the engine, in a forked child: the operation goes on in the parent."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal

    def poll(self, handle: int) -> bool:
        raise ShutdownError(self._refusal)

    def contains(self, handle: int) -> bool:
        return False

    def wait(self, handle: int) -> list[_native.Output]:
        raise ShutdownError(self._refusal)


class PendingOperations(Generic[T]):
    """Operations of one framework by handle. Handles are plain ints, valid once."""

    def __init__(self, adapter: Adapter[T]) -> None:
        self._adapter = adapter
        self._pending: dict[int, _Pending] = {}
        self._errors: dict[int, Exception] = {}  # of operations that ended with their world
        at_end(self._keep_results)
        at_fork(self._leave_to_parent)

    def poll(self, handle: int) -> bool:
        """Whether the operation is done, so that ``synchronize`` does not block."""
        pending = self._pending.get(handle)
        return pending is None or pending[0].poll(handle)

    def synchronize(self, handle: int) -> Any:
        """Wait for the operation and return its result; None for a handle that was used before.

        Raises:
            MismatchError: ranks disagree about this operation.
            HorovodInternalError: a rank was lost, or the engine shut down.
        """
        pending = self._pending.get(handle)
        if pending is None:
            if handle in self._errors:
                raise self._errors.pop(handle)
            return None
        current, tensor, output, finish = pending
        try:
            outputs = current.wait(handle)
        except BaseException:
            # After Ctrl-C or another exception of a signal handler the operation is still under
            # way, and its buffers must stay.
            if not current.contains(handle):
                self._pending.pop(handle, None)
            raise
        self._pending.pop(handle, None)
        return output if finish is None else finish(outputs, tensor, output)

    def start(
        self,
        operation: _native.Operation,
        full_name: str | None,
        tensor: T,
        output: T | None,
        finish: Finish | None,
        splits: Sequence[int] = (),
    ) -> int:
        """Submit one tensor."""
        # ``start_many`` spelled out: a fifth of the time that submitting one tensor takes.
        current = engine()
        try:
            handle = self._adapter.submit(
                current, operation, full_name, tensor, output, _COMPUTE, splits
            )
            self._pending[handle] = (current, tensor, output, finish)
        except (ValueError, HorovodInternalError):
            raise  # refused: nothing is under way
        except BaseException:
            _without_handle.append((current, tensor, output))
            raise
        return handle

    def start_many(
        self,
        submit: Callable[..., int],
        args: tuple[Any, ...],
        tensors: list[T],
        outputs: list[T] | None,
        finish: Finish | None,
    ) -> int:
        """Submit several tensors under one handle, by ``submit(engine, *args)``."""
        current = engine()
        try:
            handle = submit(current, *args)
            self._pending[handle] = (current, tensors, outputs, finish)
        except (ValueError, HorovodInternalError):
            raise
        except BaseException:
            _without_handle.append((current, tensors, outputs))
            raise
        return handle

    def _keep_results(self, ended: _native.Engine) -> None:
        """Keep results and errors of a world that has ended: ``synchronize`` may ask for them."""
        for handle, pending in list(self._pending.items()):
            if pending[0] is not ended or not ended.poll(handle):
                continue
            try:
                outputs = ended.wait(handle)
            except (ValueError, HorovodInternalError) as error:
                self._errors[handle] = error.with_traceback(None)
                self._pending.pop(handle, None)  # another thread may have been first
            else:
                self._pending[handle] = (_Finished(outputs), *pending[1:])

    def _leave_to_parent(self, engine: _native.Engine, refusal: str) -> None:
        """In a forked child: ``synchronize`` refuses what the parent has under way."""
        for handle, pending in list(self._pending.items()):
            if pending[0] is engine:
                self._pending[handle] = (_OfParent(refusal), *pending[1:])


def named_error(
    error: ValueError,
    operation: _native.Operation,
    name: str | None,
    index: int = 0,
    count: int = 0,
) -> ValueError:
    """``error`` about a tensor of a call; of a group, where it is one of ``count``."""
    return ValueError(f"{operation.title_of(name, index, count)}: {error}")


Described = tuple[int, list[int], int]  # address, shape, dtype


def describe_all(
    describe: Callable[[T], Described],
    place_of: Callable[[T], int],
    tensors: Sequence[T],
    outputs: Sequence[T] | None,
    operation: _native.Operation,
    names: Iterable[str | None],
    *,
    is_group: bool,
) -> list[tuple[int, int, list[int], int]]:
    """Input and output address, shape and dtype of each, for the engine; ``outputs`` None: 0.

    ``describe`` and ``place_of`` look at an input and an output; their ``ValueError`` gets the name
    of the tensor: the one in ``names``, and its place if it ``is_group``.
    """
    described: list[tuple[int, int, list[int], int]] = []
    count = len(tensors) if is_group else 0
    given: Iterable[T | None] = repeat(None) if outputs is None else outputs
    for tensor, output, name in zip(tensors, given, names, strict=False):
        try:
            address, shape, dtype = describe(tensor)
            place = 0 if output is None else place_of(output)
        except ValueError as error:
            raise named_error(error, operation, name, len(described), count) from None
        described.append((address, place, shape, dtype))
    return described


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
            _without_handle.append((engine, tensor, output))
        raise


def wait_for_all(started: Iterable[H], wait: Callable[[H], R]) -> list[R]:
    """The results of all operations; iterating over ``started`` may start them.

    After a failure no further one starts. Those that run are waited for, then the first failure is
    raised.
    """
    handles: list[H] = []
    results: list[R] = []
    failure: Exception | None = None
    try:
        for handle in started:
            handles.append(handle)
    except (ValueError, RuntimeError) as error:
        failure = error
    for handle in handles:
        try:
            results.append(wait(handle))
        except RuntimeError as error:
            failure = failure or error
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # which has this frame in its traceback
    return results


def integers(splits: Any) -> list[int]:
    """Splits of an alltoall that are no tensor; ``ValueError`` if they are no integers."""
    try:
        return [index(split) for split in splits]
    except TypeError:
        raise ValueError(
            f"alltoall: splits must be an int32 vector or a list of integers, found {splits!r}"
        ) from None
