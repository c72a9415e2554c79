"""Which elements of the parameters this rank owns where ranks share the optimizer's step.

The elements of the parameters lie in *units*. A large parameter is a unit: the rank's part of it is
stepped where it is. Small ones are joined in a unit that has memory of its own, so that the step
takes a few long tensors and not hundreds of short ones. Every rank owns a run of each unit's
elements, as a reducescatter of the engine splits them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from horovod.core.operations import own_part

_LARGE_BYTES = 64 << 10  # stepping fewer is mostly the cost of a call


class Place(NamedTuple):
    """A rank of a set of ranks that share a step."""

    rank: int
    size: int


def is_large(param: Tensor) -> bool:
    """Whether the parameter is a unit by itself; equal on ranks that order its memory otherwise."""
    return param.numel() * param.element_size() >= _LARGE_BYTES


def _is_stepped_in_place(params: Sequence[Tensor]) -> bool:
    return is_large(params[0]) and params[0].is_contiguous()


class _Joined:
    """Memory for all elements of a unit, and its parts in the shapes of the parameters."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        count = sum(param.numel() for param in params)
        self.flat = torch.empty(count, dtype=params[0].dtype, device=params[0].device)
        self.parts = _cut(self.flat, params)


class Unit:
    """Elements that all ranks split: those of one large parameter, or of several small ones.

    Args:
        params: of one dtype and device; the same on every rank.
        group: the number of their parameter group.
        place: whose part this is.

    Attributes:
        params, group: as given.
        shard: the parameter that is stepped in place of this rank's elements. Its memory is that of
            a large parameter, or of a copy of small ones.
        gradient: the gradients of all elements, flat; None outside of a step.
    """

    def __init__(self, params: Sequence[Tensor], group: int, place: Place) -> None:
        self.params = list(params)
        self.group = group
        self.gradient: Tensor | None = None
        self._part = own_part(sum(param.numel() for param in params), *place)
        self._gradients: _Joined | None = None  # where they are not in one piece
        self._values: _Joined | None = None  # None: those of the parameter itself
        if not _is_stepped_in_place(params):
            self._values = _Joined(self.params)
        self._touched = self._overlapping()
        self.shard = torch.nn.Parameter(self.own(self._all_values()), requires_grad=False)

    @torch.no_grad()
    def take_gradients(self, gradients: list[Tensor]) -> None:
        """Let ``gradient`` be these, one for each parameter: in place if they can be."""
        gradients = [g.to_dense() if g.is_sparse else g for g in gradients]
        if self._values is None and gradients[0].is_contiguous():
            self.gradient = gradients[0].detach().view(-1)
            return
        if self._gradients is None:
            self._gradients = _Joined(self.params)
        torch._foreach_copy_(self._gradients.parts, gradients)
        self.gradient = self._gradients.flat

    @torch.no_grad()
    def put_gradients(self, gradients: list[Tensor]) -> None:
        """Write ``gradient`` back to these, unless it is their memory; sparse ones are replaced."""
        is_copy = self._gradients is not None and self.gradient is self._gradients.flat
        sparse = [number for number, gradient in enumerate(gradients) if gradient.is_sparse]
        if not sparse and not is_copy:
            return
        parts = self.cut(self.flat_gradient())
        for number in sparse:
            dim = gradients[number].sparse_dim()
            self.params[number].grad = parts[number].to_sparse(dim)
        dense = [n for n, gradient in enumerate(gradients) if not gradient.is_sparse]
        if is_copy and dense:
            torch._foreach_copy_([gradients[n] for n in dense], [parts[n] for n in dense])

    def flat_gradient(self) -> Tensor:
        """``gradient``, which is there."""
        assert self.gradient is not None
        return self.gradient

    def own(self, flat: Tensor) -> Tensor:
        """This rank's elements of ``flat``, which has those of the whole unit."""
        return flat[self._part]

    def cut(self, flat: Tensor) -> list[Tensor]:
        """The parts of ``flat`` in the shapes of the parameters."""
        return _cut(flat, self.params)

    @torch.no_grad()
    def prepare_step(self) -> None:
        """Let the shard have the parameters' values, and the reduced gradient."""
        if self._values is None and not self.params[0].is_contiguous():
            self._values = _Joined(self.params)  # a program has given it another memory order
            self.shard.data = self.own(self._values.flat)
        if self._values is None:
            self.shard.data = self.own(self._all_values())  # a program may have moved it
        elif self.shard.numel():
            torch._foreach_copy_(self._values.parts[self._touched], self.params[self._touched])
        self.shard.grad = self.own(self.flat_gradient())

    def values(self) -> tuple[Tensor, Tensor]:
        """After the step: this rank's values, and the place for those of all ranks around them."""
        return self.shard.detach(), self._all_values()

    @torch.no_grad()
    def end_step(self) -> None:
        """The place has all values."""
        if self._values is not None:
            torch._foreach_copy_(self.params, self._values.parts)
        self.shard.grad = self.gradient = None

    def _all_values(self) -> Tensor:
        return self.params[0].detach().view(-1) if self._values is None else self._values.flat

    def _overlapping(self) -> slice:
        """The parameters of which this rank owns elements."""
        ends = list(accumulate(param.numel() for param in self.params))
        first = bisect_right(ends, self._part.start)
        return slice(first, bisect_left(ends, self._part.stop, first) + 1)


def _cut(flat: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [param.numel() for param in params])
    return [part.view(param.shape) for part, param in zip(parts, params, strict=True)]
