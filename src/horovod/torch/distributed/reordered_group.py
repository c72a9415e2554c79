"""A process group whose ranks are not in the order of the world's.

The engine's process set has its ranks in rising order. So what is a part for each rank is put in
that order, or taken out of it, one copy more than in other groups. All else is the same: roots and
peers are ranks of the world, and sums do not depend on the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

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
from horovod.torch.distributed.members import Members
from horovod.torch.distributed.operations import tensor_of
from horovod.torch.distributed.process_group import HorovodProcessGroup
from horovod.torch.distributed.tensors import Landing, movable, single, split_into
from horovod.torch.distributed.work import AllWorks, HorovodWork

Item = TypeVar("Item")


class ReorderedProcessGroup(HorovodProcessGroup):
    """``HorovodProcessGroup`` for ranks in any order."""

    def __init__(self, members: Members, timeout_s: float) -> None:
        super().__init__(members, timeout_s)
        ranks = members.ranks
        self._in_set = sorted(range(len(ranks)), key=ranks.__getitem__)  # the group's ranks

    def _as_in_set(self, parts: Sequence[Item]) -> list[Item]:
        """The parts of the group's ranks, in the order of the process set."""
        return [parts[rank] for rank in self._in_set]

    def _reduce_scatter(
        self,
        title: str,
        output: torch.Tensor,
        flat: torch.Tensor,
        opts: Any,
        is_even: bool,
        parts: Tensors | None,
    ) -> HorovodWork:
        if is_even and reduction_in(opts, None, output, title).is_sum:
            rows = flat.view(self.size(), flat.numel() // self.size())
            flat = rows[self._in_set].view(-1)
        return super()._reduce_scatter(title, output, flat, opts, is_even, parts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> HorovodWork:
        """See ``HorovodProcessGroup``; one operation for each tensor."""
        pairs = zip(outputs, inputs, strict=True)
        works = [self._reduce_scatter_base(output, tensor, opts) for output, tensor in pairs]
        return AllWorks(works, list(outputs))

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def allgather(
        self, outputs: Lists, inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> HorovodWork:
        """See ``HorovodProcessGroup``."""
        targets = only_list(outputs, "all_gather")
        check_count(targets, self.size(), "all_gather")
        return super().allgather([self._as_in_set(targets)], inputs, opts, timeout)

    def _allgather_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> HorovodWork:
        title = "all_gather_into_tensor"
        if output.numel() != input.numel() * self.size() or output.dtype != input.dtype:
            raise bad_output(title, output, input, self.size())
        flat, landing = movable(input), Landing(output, title)
        parts = landing.memory.detach().view(self.size(), flat.numel()).unbind()

        def finish(found: list[_native.Output]) -> None:
            split_into(tensor_of(found, flat.dtype), self._as_in_set(parts), title)
            landing.end()

        operation = self._run.operation(Kind.ALLGATHER, title)
        return self._run.start_sized(title, operation, flat, opts, [output], finish)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> HorovodWork:
        """See ``HorovodProcessGroup``; one operation for each tensor."""
        pairs = zip(outputs, inputs, strict=True)
        works = [self._allgather_base(output, tensor, opts) for output, tensor in pairs]
        return AllWorks(works, list(outputs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs: Lists, inputs: Tensors, opts: Any = None) -> HorovodWork:
        """See ``HorovodProcessGroup``."""
        flat = movable(single(inputs, "gather"))
        received = [flat[:0]] * self.size()
        sent = [flat if rank == root_in(opts) else flat[:0] for rank in range(self.size())]
        if root_in(opts) == self._members.rank:
            received = list(only_list(outputs, "gather"))
        return self.alltoall(received, sent, opts)

    def scatter(self, outputs: Tensors, inputs: Lists, opts: Any = None) -> HorovodWork:
        """See ``HorovodProcessGroup``."""
        output = single(outputs, "scatter")
        none = movable(output)[:0]
        sent: Sequence[torch.Tensor] = [none] * self.size()
        if root_in(opts) == self._members.rank:
            sent = only_list(inputs, "scatter")
        received = [output if rank == root_in(opts) else none for rank in range(self.size())]
        return self.alltoall(received, sent, opts)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> HorovodWork:
        """See ``HorovodProcessGroup``."""
        title = "all_to_all_single"
        received = check_splits(title, "output", output, output_splits, self.size())
        sent = check_splits(title, "input", input, input_splits, self.size())
        return self.alltoall(_rows(output, received), _rows(input, sent), opts)

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HorovodWork:
        """See ``HorovodProcessGroup``."""
        check_count(inputs, self.size(), "all_to_all")
        check_count(outputs, self.size(), "all_to_all")
        return super().alltoall(self._as_in_set(outputs), self._as_in_set(inputs), opts)


def _rows(tensor: torch.Tensor, splits: list[int]) -> Tensors:
    return torch.split(tensor.detach() if tensor.dim() else tensor.detach().view(1), splits)
