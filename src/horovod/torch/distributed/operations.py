"""How a process group starts the engine's operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from horovod import _native
from horovod.core.operations import Average, Dtype, Intent, Kind, Sum
from horovod.torch.adapter import DTYPES, adapter
from horovod.torch.distributed.arguments import Reduction, intent_of, limit_of
from horovod.torch.distributed.backward import end_after_backward, is_started_by_ddp
from horovod.torch.distributed.tensors import movable, put
from horovod.torch.distributed.work import AllWorks, DoneWork, EngineWork, HorovodWork, end_now

if TYPE_CHECKING:
    from horovod.torch.distributed.members import Members
    from horovod.torch.distributed.tensors import Landing
    from horovod.torch.distributed.work import Finish

_COMPUTE = Intent.COMPUTE
AnyWork = TypeVar("AnyWork", bound=HorovodWork)


class Operations:
    """The operations of one group, in the order of their start.

    Attributes:
        timeout_s: the longest wait for one of them.
        count: how many collectives were started.
    """

    def __init__(self, members: Members, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.count = 0
        self._members = members
        # By kind, then by the other arguments.
        self._known: list[dict[tuple[str, int, float, int], _native.Operation]]
        self._known = [{} for _ in Kind]
        self._coalesced: list[HorovodWork] | None = None

    def operation(
        self, kind: Kind, title: str, op: int = Sum, prescale: float = 1.0, root: int = 0
    ) -> _native.Operation:
        """What to do, as the engine takes it. ``root``: a rank of the group.

        The engine numbers all operations of the group, and matches the numbers, whatever the title.

        Raises:
            ValueError: the group has no such rank.
        """
        known, key = self._known[kind], (title, op, prescale, root)
        found = known.get(key)
        if found is None:
            members = self._members
            if not 0 <= root < len(members.ranks):
                raise ValueError(
                    f"{title}: root rank {root} is not in the group of {len(members.ranks)} ranks"
                )
            arguments = (kind, op, members.ranks[root], prescale, 1.0, members.number, True)
            found = known[key] = _native.Operation(*arguments, title, members.title)
        return found

    def start(
        self,
        operation: _native.Operation,
        tensor: torch.Tensor,
        landing: Landing,
        opts: Any,
        tensors: list[torch.Tensor],
        splits: Sequence[int] = (),
    ) -> HorovodWork:
        """Start an operation whose result has a place. ``tensors``: those of the result."""
        engine, output = self._members.engine, landing.memory
        handle = adapter.submit(engine, operation, None, tensor, output, intent_of(opts), splits)
        return self._work(landing.title, handle, opts, tensors, (tensor, output), landing.finish)

    def start_in_place(
        self, title: str, operation: _native.Operation, tensor: torch.Tensor, opts: Any
    ) -> HorovodWork:
        """Start an operation on a tensor that the engine can read and write as it is."""
        engine, intent = self._members.engine, intent_of(opts)
        is_bucket = intent is _COMPUTE and not tensor.is_cuda and is_started_by_ddp(depth=2)
        if is_bucket:
            intent = Intent.MORE
        handle = adapter.submit(engine, operation, None, tensor, tensor, intent)
        work = self._work(title, handle, opts, [tensor], tensor)
        if is_bucket:
            end_after_backward(work)
        return work

    def start_sized(
        self,
        title: str,
        operation: _native.Operation,
        tensor: torch.Tensor,
        opts: Any,
        tensors: list[torch.Tensor],
        finish: Finish,
        splits: Sequence[int] = (),
    ) -> HorovodWork:
        """Start an operation whose result the engine allocates; ``finish`` gets it."""
        engine = self._members.engine
        handle = adapter.submit(engine, operation, None, tensor, None, intent_of(opts), splits)
        return self._work(title, handle, opts, tensors, tensor, finish)

    def start_bitwise(
        self,
        title: str,
        tensor: torch.Tensor,
        reduction: Reduction,
        opts: Any,
        tensors: list[torch.Tensor],
        target: torch.Tensor,
        then: Callable[[], None] | None = None,
    ) -> HorovodWork:
        """Start a bitwise reduction into ``target``, after which ``then`` is called.

        It is an allgather: the engine has no such op, and it is rare.
        """
        flat = movable(tensor)

        def finish(outputs: list[_native.Output]) -> None:
            each = tensor_of(outputs, flat.dtype).view(len(self._members.ranks), -1)
            put(functools.reduce(cast("Any", reduction.bitwise), each), target)
            if then is not None:
                then()

        operation = self.operation(Kind.ALLGATHER, title)
        return self.start_sized(title, operation, flat, opts, tensors, finish)

    def start_sparse(
        self, title: str, tensor: torch.Tensor, reduction: Reduction, opts: Any
    ) -> HorovodWork:
        """Start adding up sparse tensors, in place: every rank gets the rows of all.

        Raises:
            ValueError: the op is no sum and no average.
        """
        if not reduction.is_sum:
            raise ValueError(f"{title}: sparse tensors can be summed and averaged only")
        own = tensor.detach().coalesce()
        values = own.values() * reduction.prescale
        parts = [own.indices().t().contiguous(), values.contiguous()]
        members = self._members
        operation = _native.Operation(
            Kind.ALLGATHER, process_set=members.number, title=title, group=members.title
        )
        arguments = (operation, None, parts, None, intent_of(opts))
        handle = adapter.submit_group(self._members.engine, *arguments)

        def finish(outputs: list[_native.Output]) -> None:
            rows, found = tensor_of(outputs, torch.int64), tensor_of(outputs[1:], values.dtype)
            if reduction.op == Average:
                found = found / len(self._members.ranks)
            shape = tensor.shape  # which other ranks know on their own: so rows are checked
            whole = torch.sparse_coo_tensor(
                rows.t(), found, shape, device=found.device, check_invariants=True
            )
            with torch.no_grad():
                tensor.copy_(whole.coalesce())

        return self._work(title, handle, opts, [tensor], parts, finish)

    def start_group(
        self,
        operation: _native.Operation,
        inputs: list[torch.Tensor],
        landings: list[Landing],
        opts: Any,
        tensors: list[torch.Tensor],
    ) -> HorovodWork:
        """Start several tensors as one operation."""
        outputs = [landing.memory for landing in landings]
        arguments = (operation, None, inputs, outputs, intent_of(opts))
        handle = adapter.submit_group(self._members.engine, *arguments)

        def finish(found: list[_native.Output]) -> None:
            for landing in landings:
                landing.end(found)

        title = landings[0].title
        return self._work(title, handle, opts, tensors, (inputs, outputs), finish)

    def start_barrier(self, opts: Any) -> EngineWork:
        """Start to wait for all ranks."""
        members, operation = self._members, self.operation(Kind.BARRIER, "barrier")
        handle = members.engine.submit(operation, None, 0, 0, [], Dtype.UINT8, intent_of(opts))
        limit_s = limit_of(opts, self.timeout_s)
        self.count += 1
        return self.note(EngineWork(members, handle, "barrier", limit_s, []))

    def begin_coalescing(self) -> None:
        """What starts from now on is a part of one work."""
        self._coalesced = []

    def end_coalescing(self) -> HorovodWork:
        """That work."""
        works, self._coalesced = self._coalesced or [], None
        return AllWorks(works, [tensor for work in works for tensor in work.tensors])

    def note(self, work: AnyWork) -> AnyWork:
        """``work`` has started."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _work(
        self,
        title: str,
        handle: int,
        opts: Any,
        tensors: list[torch.Tensor],
        kept: Any = None,
        finish: Finish | None = None,
    ) -> HorovodWork:
        limit_s = limit_of(opts, self.timeout_s)
        arguments = (self._members, handle, title, limit_s, tensors, kept, finish)
        self.count += 1
        if self._coalesced is not None or intent_of(opts) is _COMPUTE:
            return self.note(EngineWork(*arguments))
        end_now(*arguments)
        return DoneWork(tensors)


def tensor_of(outputs: list[_native.Output], dtype: torch.dtype) -> torch.Tensor:
    """What the engine has allocated."""
    return adapter.from_output(outputs[0], DTYPES[dtype])
