"""The grouped collectives: several tensors as one operation; see ``collectives``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from horovod.core.calls import Call, as_group, exchange, full_name, reduction
from horovod.core.compression import LinkFormat
from horovod.core.handles import Adapter, PendingOperations
from horovod.core.operations import Average, Intent, Kind
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from horovod import _native

T = TypeVar("T")
_ALLREDUCE = Kind.ALLREDUCE  # looking up an enum's member takes half as long as making a call


class GroupedCollectives(Generic[T]):
    """The operations on groups, and what all operations of an adapter share.

    A *group* is several tensors as one operation: it runs when all of them are ready on all ranks,
    and if ranks disagree about one of them, none is touched. ``tensors``: at least one (else
    ``IndexError``), in the same order on all ranks, each as for the operation on a single tensor;
    dtypes and shapes may differ within the group. Common arguments are those of ``Collectives``.
    """

    def __init__(self, adapter: Adapter[T]) -> None:
        self._adapter = adapter
        self._pending = pending = PendingOperations(adapter)
        self._start, self.poll, self.synchronize = pending.start, pending.poll, pending.synchronize

    def grouped_allreduce_async(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Like ``allreduce_async`` of every tensor; the result is a tuple of new tensors."""
        call = reduction(_ALLREDUCE, average, op, prescale_factor, postscale_factor, process_set)
        inputs = as_group(tensors)
        outputs = [self._adapter.empty_like(tensor) for tensor in inputs]
        return self._start_group(call, name, inputs, outputs)

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        link_format: int = LinkFormat.AS_SET,
        errors: Sequence[T | None] = (),
        members: Sequence[str] = (),
    ) -> int:
        """Like ``grouped_allreduce_async``, with the results in the tensors themselves.

        ``link_format``, ``errors``: as for ``allreduce_batch_async_``. ``members``: the names of
        the tensors, which say what a low-bit format leaves exact; none: they are not known.
        """
        factors = (prescale_factor, postscale_factor)
        call = reduction(_ALLREDUCE, average, op, *factors, process_set, link_format)
        inputs = as_group(tensors)
        return self._start_group(call, name, inputs, inputs, errors=errors, members=members)

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        link_format: int = LinkFormat.AS_SET,
    ) -> list[T]:
        """New tensors with the reduced values; see ``grouped_allreduce_async``."""
        factors = (prescale_factor, postscale_factor)
        call = reduction(_ALLREDUCE, average, op, *factors, process_set, link_format)
        inputs = as_group(tensors)
        outputs = [self._adapter.empty_like(tensor) for tensor in inputs]
        return list(self._run_group(call, name, inputs, outputs))

    def grouped_allreduce_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """Reduce the tensors in place, and return them; see ``grouped_allreduce_async``."""
        call = reduction(_ALLREDUCE, average, op, prescale_factor, postscale_factor, process_set)
        inputs = as_group(tensors)
        return list(self._run_group(call, name, inputs, inputs))

    def grouped_allgather_async(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Like ``allgather_async`` of every tensor; the result is a tuple."""
        call = exchange(Kind.ALLGATHER, process_set)
        return self._start_group(call, name, as_group(tensors), None)

    def grouped_allgather(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> tuple[T, ...]:
        """Each tensor joined over all ranks; see ``allgather_async``."""
        call = exchange(Kind.ALLGATHER, process_set)
        return self._run_group(call, name, as_group(tensors), None)

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Like ``reducescatter_async`` of every tensor; the result is a tuple."""
        factors = (prescale_factor, postscale_factor)
        call = reduction(Kind.REDUCESCATTER, None, op, *factors, process_set)
        return self._start_group(call, name, as_group(tensors), None)

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[T]:
        """This rank's rows of each reduced tensor; see ``reducescatter_async``."""
        factors = (prescale_factor, postscale_factor)
        call = reduction(Kind.REDUCESCATTER, None, op, *factors, process_set)
        return list(self._run_group(call, name, as_group(tensors), None))

    def group_into_async(
        self, call: Call, name: str, tensors: list[T], outputs: list[T], intent: Intent
    ) -> int:
        """Start a collective on a group whose results have places; returns a handle.

        Args:
            call: what to do.
            outputs: of the size of each result; another size is a ``HorovodInternalError``. An
                allgather may have its input inside of its output, where its result is, and a
                reducescatter its output inside of its input.
            intent: what the caller does next.
        """
        args = (call.operation, f"grouped_{call.title}.{name}", tensors, outputs, intent)
        return self._pending.start_many(
            self._adapter.submit_group, args, tensors, outputs, _given_exactly
        )

    def _start_group(
        self,
        call: Call,
        name: str | None,
        tensors: list[T],
        outputs: list[T] | None,
        intent: Intent = Intent.COMPUTE,
        errors: Sequence[T | None] = (),
        members: Sequence[str] = (),
    ) -> int:
        name = full_name(f"grouped_{call.title}", name)
        args: tuple[Any, ...] = (call.operation, name, tensors, outputs, intent, list(members))
        finish = self._allocated_all if outputs is None else _given_all
        kept: Any = tensors
        if errors:  # only where there are outputs, so that ``finish`` needs no tensors
            args += (errors,)
            kept = (tensors, errors)
        return self._pending.start_many(self._adapter.submit_group, args, kept, outputs, finish)

    def _run_group(
        self, call: Call, name: str | None, tensors: list[T], outputs: list[T] | None
    ) -> tuple[T, ...]:
        handle = self._start_group(call, name, tensors, outputs, Intent.WAIT)
        result: tuple[T, ...] = self.synchronize(handle)
        return result

    def _allocated(self, outputs: list[_native.Output], tensor: T, _: Any) -> T:
        return self._adapter.result(outputs[0], tensor)

    def _allocated_all(self, outputs: list[_native.Output], tensors: list[T], _: Any) -> Any:
        pairs = zip(outputs, tensors, strict=True)
        return tuple(self._allocated([output], tensor, None) for output, tensor in pairs)


def _given_exactly(allocated: list[_native.Output], _tensors: Any, outputs: Any) -> Any:
    """``outputs``, unless the engine had to allocate others."""
    wrong = [output.shape for output in allocated if math.prod(output.shape)]
    if wrong:
        raise HorovodInternalError(
            f"a result has shape {list(wrong[0])}, which is not that of its place: the ranks give "
            "other sizes, or one has called join()"
        )
    return tuple(outputs)


def _given_all(_outputs: list[_native.Output], _tensors: Any, outputs: Any) -> Any:
    return tuple(outputs)
