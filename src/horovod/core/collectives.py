"""The collectives: one definition for all frameworks, written against a small tensor adapter.

A binding supplies an ``Adapter`` and exports the methods of ``Collectives``. An operation is
started by ``*_async`` and ended by ``synchronize``; the ``*_`` forms write into the tensor they are
given. Every rank of the process set must start the same operations under the same names, in any
order. Errors:

    ValueError             the call cannot be right (dtype, layout, root, splits, name in use)
    MismatchError          ranks disagree; raised on every rank, the engine stays usable
    HorovodInternalError   a rank was lost or shut down; only a new ``init`` helps
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from horovod.core.calls import Call, check_splits, exchange, full_name, reduction
from horovod.core.compression import LinkFormat
from horovod.core.grouped_collectives import GroupedCollectives
from horovod.core.operations import Average, Dtype, Intent, Kind
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.world import engine, generation

if TYPE_CHECKING:
    from horovod import _native

T = TypeVar("T")
_ALLREDUCE = Kind.ALLREDUCE  # looking up an enum's member takes half as long as making a call


class Collectives(GroupedCollectives[T]):
    """The collectives over one framework's tensors.

    Common arguments. ``name``: the same on all ranks, free again once synchronised; by default the
    n-th unnamed operations of a kind belong together. ``process_set``: the ranks that take part;
    this process must be a member.
    """

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Start reducing ``tensor`` over all ranks into a new tensor; returns a handle.

        Args:
            tensor: any shape, the same on all ranks, contiguous; uint8, uint16, int8, int16, int32,
                int64, float16, bfloat16, float32, float64 or bool (Sum and Max: or; Product and
                Min: and); complex numbers with Sum, Average and Adasum.
            average: deprecated, use ``op``.
            op: Average (default), Sum, Min, Max, Product, or Adasum for floats; the same on all
                ranks.
            prescale_factor: multiplies every input before the reduction.
            postscale_factor: multiplies the result.
        """
        call = reduction(_ALLREDUCE, average, op, prescale_factor, postscale_factor, process_set)
        output = self._adapter.empty_like(tensor)
        name = None if name is None else f"allreduce.{name}"  # spelled out: no call
        return self._start(call.operation, name, tensor, output, None)

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Like ``allreduce_async``, with the result in ``tensor`` itself."""
        call = reduction(_ALLREDUCE, average, op, prescale_factor, postscale_factor, process_set)
        name = None if name is None else f"allreduce.{name}"  # spelled out: no call
        return self._start(call.operation, name, tensor, tensor, None)

    def allreduce(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        link_format: int = LinkFormat.AS_SET,
    ) -> T:
        """Reduce ``tensor`` over all ranks into a new tensor; see ``allreduce_async``."""
        factors = (prescale_factor, postscale_factor)
        call = reduction(_ALLREDUCE, average, op, *factors, process_set, link_format)
        output = self._adapter.empty_like(tensor)
        name = None if name is None else f"allreduce.{name}"  # spelled out: no call
        self._adapter.run(engine(), call.operation, name, tensor, output)
        return output

    def allreduce_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        link_format: int = LinkFormat.AS_SET,
    ) -> T:
        """Reduce ``tensor`` over all ranks in place, and return it; see ``allreduce_async``."""
        factors = (prescale_factor, postscale_factor)
        call = reduction(_ALLREDUCE, average, op, *factors, process_set, link_format)
        name = None if name is None else f"allreduce.{name}"  # spelled out: no call
        self._adapter.run(engine(), call.operation, name, tensor, tensor)
        return tensor

    def allreduce_batch_async_(
        self,
        tensors: list[T],
        names: list[str],
        op: int,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        *,
        intent: Intent = Intent.COMPUTE,
        process_set: ProcessSet = global_process_set,
        link_format: int = LinkFormat.AS_SET,
        errors: Sequence[T | None] = (),
    ) -> int:
        """Start many allreduces in place at once; one handle for all, whose result is ``tensors``.

        Each tensor is an operation of its own, under its full name (``allreduce.<name>``), so ranks
        may batch differently. ``intent`` says what the caller does next. ``errors``: for each
        tensor a float32 one of its shape in host memory, where the engine writes what a low-bit
        format leaves out on this rank, or None; torch only.
        """
        factors = (prescale_factor, postscale_factor)
        call = reduction(_ALLREDUCE, None, op, *factors, process_set, link_format)
        args: tuple[Any, ...] = (call.operation, names, tensors, intent)
        kept: Any = tensors
        if errors:
            args += (errors,)
            kept = (tensors, errors)
        return self._pending.start_many(self._adapter.submit_batch, args, kept, tensors, None)

    def allgather_async(
        self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Start joining the ranks' tensors along the first dimension; returns a handle.

        Args:
            tensor: [n, ...], contiguous; n may differ between ranks and be 0, the rest not.
        """
        call = exchange(Kind.ALLGATHER, process_set)
        return self._start(
            call.operation, full_name("allgather", name), tensor, None, self._allocated
        )

    def allgather(
        self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """All ranks' tensors joined along the first dimension; see ``allgather_async``."""
        call = exchange(Kind.ALLGATHER, process_set)
        outputs = self._adapter.run(
            engine(), call.operation, full_name("allgather", name), tensor, None
        )
        return self._allocated(outputs, tensor, None)

    def broadcast_async(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Start sending ``root_rank``'s tensor to all ranks, into a new tensor; returns a handle.

        Args:
            tensor: any shape and dtype, the same on all ranks, contiguous.
            root_rank: a rank of the world that is in the set; the same on all ranks.
        """
        call = exchange(Kind.BROADCAST, process_set, root_rank)
        output = self._adapter.empty_like(tensor)
        return self._start(call.operation, full_name("broadcast", name), tensor, output, None)

    def broadcast_async_(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Like ``broadcast_async``, with the result in ``tensor`` itself."""
        call = exchange(Kind.BROADCAST, process_set, root_rank)
        return self._start(call.operation, full_name("broadcast", name), tensor, tensor, None)

    def broadcast(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """A new tensor with ``root_rank``'s values; see ``broadcast_async``."""
        call = exchange(Kind.BROADCAST, process_set, root_rank)
        output = self._adapter.empty_like(tensor)
        self._adapter.run(engine(), call.operation, full_name("broadcast", name), tensor, output)
        return output

    def broadcast_(
        self,
        tensor: T,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Overwrite ``tensor`` with ``root_rank``'s, and return it; see ``broadcast_async``."""
        call = exchange(Kind.BROADCAST, process_set, root_rank)
        self._adapter.run(engine(), call.operation, full_name("broadcast", name), tensor, tensor)
        return tensor

    def alltoall_async(
        self,
        tensor: T,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Start sending each rank its part of the first dimension; returns a handle.

        The result is a pair: the rows received, in rank order, and how many came from each rank
        (int32, one entry per rank of the set).

        Args:
            tensor: [n, ...], contiguous; n may differ between ranks, the rest not.
            splits: int32 vector or list: rows for each rank of the set, 0 allowed, n in all at
                most; None: equal parts, where n must be a multiple of the number of ranks.
        """
        rows = () if splits is None else check_splits(self._adapter.split_list(splits))
        call = exchange(Kind.ALLTOALL, process_set)
        name = full_name("alltoall", name)
        return self._start(call.operation, name, tensor, None, self._exchanged, rows)

    def alltoall(
        self,
        tensor: T,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Send each rank its part; the rows received, and with ``splits`` their number by rank.

        See ``alltoall_async``.
        """
        rows = () if splits is None else check_splits(self._adapter.split_list(splits))
        call = exchange(Kind.ALLTOALL, process_set)
        outputs = self._adapter.run(
            engine(), call.operation, full_name("alltoall", name), tensor, None, rows
        )
        received = self._exchanged(outputs, tensor, None)
        return received[0] if splits is None else received

    def reducescatter_async(
        self,
        tensor: T,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Start reducing ``tensor`` and giving each rank its part of the rows; returns a handle.

        Args:
            tensor: [n, ...], the same shape on all ranks, contiguous. Every rank gets n // size
                rows in rank order, the first n % size ranks one more.
            op: Average or Sum; the same on all ranks.
            prescale_factor: multiplies every input before the reduction.
            postscale_factor: multiplies the result.
        """
        factors = (prescale_factor, postscale_factor)
        call = reduction(Kind.REDUCESCATTER, None, op, *factors, process_set)
        name = full_name("reducescatter", name)
        return self._start(call.operation, name, tensor, None, self._allocated)

    def reducescatter(
        self,
        tensor: T,
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """This rank's part of the rows of the reduced tensor; see ``reducescatter_async``."""
        factors = (prescale_factor, postscale_factor)
        call = reduction(Kind.REDUCESCATTER, None, op, *factors, process_set)
        outputs = self._adapter.run(
            engine(), call.operation, full_name("reducescatter", name), tensor, None
        )
        return self._allocated(outputs, tensor, None)

    def _exchanged(self, outputs: list[_native.Output], tensor: T, _: Any) -> tuple[T, T]:
        received = self._adapter.from_output(outputs[1], Dtype.INT32)
        return self._allocated(outputs, tensor, None), received


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the process set has called it, or has joined.

    Raises:
        ValueError: this process is not in the set, or ``init`` was not called.
        HorovodInternalError: a rank was lost.
    """
    _run_without_tensor(exchange(Kind.BARRIER, process_set))


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all ranks have said so.

    Until then this rank takes part in whatever the others submit: with zeros in allreduce and
    reducescatter, without rows in allgather and alltoall, as a receiver in broadcast (a root that
    has joined is an error on the others). Results for it are dropped; Average still divides by the
    size of the world. A model that the others went on training is stale here afterwards: broadcast
    it from the rank that is returned.

    Args:
        device: accepted because existing scripts pass it; the engine needs no memory there.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        HorovodInternalError: a rank was lost.
    """
    global _joins_ended
    outputs = _run_without_tensor(exchange(Kind.JOIN, global_process_set))
    _joins_ended += 1
    return int(outputs[0].as_numpy(Dtype.INT32))


_joins_ended = 0


def common_past() -> tuple[int, int]:
    """Which world this is, and how often its ranks have joined and gone on.

    What ranks have found out together they all know while this stays: a rank that had joined has
    not taken part, and one of another world need not have been there.
    """
    return generation(), _joins_ended


def _run_without_tensor(call: Call) -> list[_native.Output]:
    current = engine()
    return current.wait(current.submit(call.operation, None, 0, 0, [], Dtype.UINT8, Intent.WAIT))
