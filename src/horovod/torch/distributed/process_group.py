"""``HorovodProcessGroup``: the collectives and messages of ``torch.distributed`` on the engine.

Ranks match operations of a group by their order. All ranks of a group start the same collectives in
the same order, as with any backend; shapes and dtypes are checked, and what does not fit raises
``MismatchError`` on all of them. A collective without a counterpart in the engine is made of one:
a gather and a scatter are an alltoall in which most ranks send nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from horovod import _native
from horovod.core.operations import Kind
from horovod.torch.distributed.arguments import (
    Lists,
    Tensors,
    bad_output,
    check_count,
    check_splits,
    only_list,
    reduction_in,
    root_in,
)
from horovod.torch.distributed.base_group import BaseGroup
from horovod.torch.distributed.messages import is_blocking_call
from horovod.torch.distributed.operations import tensor_of
from horovod.torch.distributed.tensors import (
    Landing,
    is_plain,
    joined,
    movable,
    put,
    reducible,
    sendable,
    single,
    split_into,
)
from horovod.torch.distributed.work import AllWorks, HorovodWork

_ALLREDUCE = Kind.ALLREDUCE  # looking up an enum's member takes half as long as making a call


class HorovodProcessGroup(BaseGroup):
    """A process group on Horovod's engine.

    Its methods take what torch gives them: options as the last argument, or in their place a root
    rank, a reduce op or a timeout; and a tensor where others give a list of one.
    """

    # Reductions

    def allreduce(
        self, tensors: Tensors, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> HorovodWork:
        """Reduce a tensor over all ranks, in place."""
        tensor = single(tensors, "all_reduce")
        reduction = reduction_in(opts, op, tensor, "all_reduce")
        opts = opts if timeout is None else timeout
        if is_plain(tensor) and reduction.bitwise is None:
            operation = self._run.operation(
                _ALLREDUCE, "all_reduce", reduction.op, reduction.prescale
            )
            return self._run.start_in_place("all_reduce", operation, tensor, opts)
        if tensor.is_sparse:
            return self._run.start_sparse("all_reduce", tensor, reduction, opts)
        if reduction.bitwise is not None:
            return self._run.start_bitwise("all_reduce", tensor, reduction, opts, [tensor], tensor)
        operation = self._run.operation(_ALLREDUCE, "all_reduce", reduction.op, reduction.prescale)
        landing = Landing(tensor, "all_reduce", reduces=True)
        return self._run.start(operation, landing.memory, landing, opts, [tensor])

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> HorovodWork:
        """Reduce several tensors in place, as one operation."""
        tensors = list(tensors)
        if len(tensors) == 1:
            return self.allreduce(tensors, opts)
        reduction = reduction_in(opts, None, tensors[0], "all_reduce_coalesced")
        if reduction.bitwise is not None:
            return AllWorks([self.allreduce([tensor], opts) for tensor in tensors], tensors)
        landings = [Landing(tensor, "all_reduce_coalesced", reduces=True) for tensor in tensors]
        operation = self._run.operation(
            _ALLREDUCE, "all_reduce_coalesced", reduction.op, reduction.prescale
        )
        flats = [landing.memory for landing in landings]
        return self._run.start_group(operation, flats, landings, opts, tensors)

    def reduce(
        self, tensors: Tensors, opts: Any = 0, op: Any = None, timeout: timedelta | None = None
    ) -> HorovodWork:
        """Reduce a tensor; the result goes to the root alone."""
        tensor = single(tensors, "reduce")
        reduction = reduction_in(None if isinstance(opts, int) else opts, op, tensor, "reduce")
        is_root = root_in(opts) == self._members.rank
        opts = opts if timeout is None else timeout
        if reduction.bitwise is not None:
            target = tensor if is_root else torch.empty_like(tensor)
            return self._run.start_bitwise("reduce", tensor, reduction, opts, [tensor], target)
        landing = Landing(tensor, "reduce", reduces=True)
        operation = self._run.operation(_ALLREDUCE, "reduce", reduction.op, reduction.prescale)
        if is_root:
            return self._run.start(operation, landing.memory, landing, opts, [tensor])
        nowhere = Landing(torch.empty_like(landing.memory), "reduce")
        return self._run.start(operation, landing.memory, nowhere, opts, [tensor])

    def reduce_scatter(self, outputs: Tensors, inputs: Lists, opts: Any = None) -> HorovodWork:
        """Reduce a list of tensors, one for each rank; each rank gets its own."""
        output, parts = single(outputs, "reduce_scatter"), only_list(inputs, "reduce_scatter")
        check_count(parts, self.size(), "reduce_scatter")
        flat = torch.cat([reducible(part) for part in parts])
        is_even = len({part.numel() for part in parts}) == 1
        return self._reduce_scatter("reduce_scatter", output, flat, opts, is_even, parts)

    def _reduce_scatter_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> HorovodWork:
        """Reduce a tensor; each rank gets an equal part of it."""
        title = "reduce_scatter_tensor"
        if input.numel() != output.numel() * self.size() or input.dtype != output.dtype:
            raise ValueError(
                f"{title}: the input must have {self.size()} times the output's elements and its "
                f"dtype; found {input.numel()} of {input.dtype}, {output.numel()} of {output.dtype}"
            )
        return self._reduce_scatter(title, output, reducible(input), opts, True, None)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> HorovodWork:
        """The same for several tensors, as one operation."""
        title = "reduce_scatter_tensor_coalesced"
        reduction = reduction_in(opts, None, inputs[0], title)
        if not reduction.is_sum:
            pairs = zip(outputs, inputs, strict=True)
            works = [self._reduce_scatter_base(out, tensor, opts) for out, tensor in pairs]
            return AllWorks(works, list(outputs))
        landings = [Landing(output, title, reduces=True, is_sized=True) for output in outputs]
        flats = [reducible(tensor) for tensor in inputs]
        operation = self._run.operation(Kind.REDUCESCATTER, title, reduction.op, reduction.prescale)
        return self._run.start_group(operation, flats, landings, opts, list(outputs))

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _reduce_scatter(
        self,
        title: str,
        output: torch.Tensor,
        flat: torch.Tensor,
        opts: Any,
        is_even: bool,
        parts: Tensors | None,
    ) -> HorovodWork:
        reduction = reduction_in(opts, None, output, title)
        landing = Landing(output, title, reduces=True, is_sized=True)
        if is_even and reduction.is_sum:
            operation = self._run.operation(
                Kind.REDUCESCATTER, title, reduction.op, reduction.prescale
            )
            return self._run.start(operation, flat, landing, opts, [output])
        before = sum(reducible(p).numel() for p in (parts or ())[: self._members.rank])
        begin = before if parts is not None else self._members.rank * landing.memory.numel()
        own = slice(begin, begin + landing.memory.numel())
        # Without parts ``flat`` may be the input, which stays as it is.
        reduced = torch.empty_like(flat) if parts is None else flat

        def finish_whole(_: Any = None) -> None:
            put(reduced[own], output)

        if reduction.bitwise is not None:
            return self._run.start_bitwise(
                title, flat, reduction, opts, [output], reduced, finish_whole
            )
        operation = self._run.operation(_ALLREDUCE, title, reduction.op, reduction.prescale)
        whole = Landing(reduced, title)
        whole.finish = finish_whole
        return self._run.start(operation, flat, whole, opts, [output])

    # What moves tensors

    def broadcast(
        self, tensors: Tensors, opts: Any = 0, timeout: timedelta | None = None
    ) -> HorovodWork:
        """Send the root's tensor to all ranks, in place."""
        tensor = single(tensors, "broadcast")
        operation = self._run.operation(Kind.BROADCAST, "broadcast", root=root_in(opts))
        opts = opts if timeout is None else timeout
        if is_plain(tensor):
            return self._run.start_in_place("broadcast", operation, tensor, opts)
        landing = Landing(tensor, "broadcast")
        return self._run.start(operation, landing.memory, landing, opts, [tensor])

    def allgather(
        self, outputs: Lists, inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> HorovodWork:
        """Give every rank the tensors of all ranks, in a list."""
        opts = opts if timeout is None else timeout
        tensor = single(inputs, "all_gather")
        targets = only_list(outputs, "all_gather")
        check_count(targets, self.size(), "all_gather")
        flat = movable(tensor)

        def finish(found: list[_native.Output]) -> None:
            split_into(tensor_of(found, flat.dtype), targets, "all_gather")

        operation = self._run.operation(Kind.ALLGATHER, "all_gather")
        return self._run.start_sized("all_gather", operation, flat, opts, list(targets), finish)

    def _allgather_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> HorovodWork:
        """Give every rank the tensors of all ranks, one behind the other."""
        title = "all_gather_into_tensor"
        if output.numel() != input.numel() * self.size() or output.dtype != input.dtype:
            raise bad_output(title, output, input, self.size())
        landing = Landing(output, title, is_sized=True)
        return self._run.start(
            self._run.operation(Kind.ALLGATHER, title), movable(input), landing, opts, [output]
        )

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> HorovodWork:
        """The same for several tensors, as one operation."""
        title = "all_gather_into_tensor_coalesced"
        landings = [Landing(output, title, is_sized=True) for output in outputs]
        flats = [movable(tensor) for tensor in inputs]
        operation = self._run.operation(Kind.ALLGATHER, title)
        return self._run.start_group(operation, flats, landings, opts, list(outputs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(self, outputs: Lists, inputs: Tensors, opts: Any = None) -> HorovodWork:
        """Several tensors of every rank; ``outputs``: a list of them for each rank."""
        by_tensor = list(zip(*outputs, strict=True))
        works = [
            self.allgather([list(each)], [tensor], opts)
            for each, tensor in zip(by_tensor, inputs, strict=True)
        ]
        return AllWorks(works, [tensor for each in outputs for tensor in each])

    def gather(self, outputs: Lists, inputs: Tensors, opts: Any = None) -> HorovodWork:
        """Give the root the tensors of all ranks, in a list."""
        flat = movable(single(inputs, "gather"))
        is_root = root_in(opts) == self._members.rank
        targets = only_list(outputs, "gather") if is_root else []
        if is_root:
            check_count(targets, self.size(), "gather")
        splits = [0] * self.size()
        splits[root_in(opts)] = flat.numel()

        def finish(found: list[_native.Output]) -> None:
            split_into(tensor_of(found, flat.dtype), targets, "gather")

        operation = self._run.operation(Kind.ALLTOALL, "gather")
        return self._run.start_sized("gather", operation, flat, opts, list(targets), finish, splits)

    def scatter(self, outputs: Tensors, inputs: Lists, opts: Any = None) -> HorovodWork:
        """Give every rank its tensor of the root's list."""
        output = single(outputs, "scatter")
        splits = [0] * self.size()
        landing = Landing(output, "scatter", is_sized=True)
        flat = landing.memory.view(-1)[:0]
        if root_in(opts) == self._members.rank:
            parts = only_list(inputs, "scatter")
            check_count(parts, self.size(), "scatter")
            flat = joined(parts)
            splits = [movable(part).numel() for part in parts]
        operation = self._run.operation(Kind.ALLTOALL, "scatter")
        return self._run.start(operation, flat, landing, opts, [output], splits)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> HorovodWork:
        """Send each rank its rows of the input, and receive its rows of the output."""
        title = "all_to_all_single"
        landing = Landing(output, title, is_sized=True)
        flat = movable(input)
        check_splits(title, "output", output, output_splits, self.size())
        splits = check_splits(title, "input", input, input_splits, self.size())
        row = flat.numel() // input.shape[0] if input.dim() and input.shape[0] else 0
        operation = self._run.operation(Kind.ALLTOALL, title)
        return self._run.start(operation, flat, landing, opts, [output], [n * row for n in splits])

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HorovodWork:
        """Send each rank its tensor of a list, and receive one from each."""
        check_count(inputs, self.size(), "all_to_all")
        check_count(outputs, self.size(), "all_to_all")
        flat = joined(inputs)
        splits = [movable(tensor).numel() for tensor in inputs]

        def finish(found: list[_native.Output]) -> None:
            split_into(tensor_of(found, flat.dtype), outputs, "all_to_all")

        operation = self._run.operation(Kind.ALLTOALL, "all_to_all")
        return self._run.start_sized(
            "all_to_all", operation, flat, opts, list(outputs), finish, splits
        )

    # Messages

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> HorovodWork:
        """Send a tensor to a rank of the group."""
        tensor = sendable(tensors, "send")
        arguments = (tensor, dst, tag, self._run.timeout_s, is_blocking_call())
        return self._run.note(self._messages.send(*arguments))

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> HorovodWork:
        """Receive a tensor from a rank of the group."""
        tensor = sendable(tensors, "recv")
        arguments = (tensor, src, tag, self._run.timeout_s, is_blocking_call())
        return self._run.note(self._messages.receive(*arguments))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> HorovodWork:
        """Receive a tensor from the rank that sends one first."""
        tensor = sendable(tensors, "recv")
        return self._run.note(self._messages.receive_any(tensor, tag, self._run.timeout_s))
