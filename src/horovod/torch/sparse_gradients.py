"""Sparse gradients of a ``GradientReducer``: gathered, or sent as dense ones.

Gathering means that every rank gets the rows of all: few bytes where few rows are touched.
Compression does not apply. A gradient goes dense where the user wants it, where the op cannot be
computed from rows, and where another rank has a dense one; its owner gets a sparse result again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from horovod.core.operations import Average, Sum
from horovod.core.process_sets import ProcessSet
from horovod.torch.gradient_layouts import GradientLayouts
from horovod.torch.parameter_names import plain_name
from horovod.torch.sparse import sparse_allreduce_async


class _Gathered(NamedTuple):
    """A gradient whose rows are being gathered."""

    param: Tensor
    postscale: float
    wait: Callable[[], Tensor]

    @torch.no_grad()
    def finish(self) -> None:
        reduced = self.wait().coalesce()
        self.param.grad = reduced if self.postscale == 1.0 else reduced * self.postscale


class _Densified(NamedTuple):
    """A sparse gradient that travels as a dense tensor."""

    param: Tensor
    dense: Tensor
    sparse_dim: int


class SparseGradients:
    """The sparse ones among the gradients of a reducer, in one step.

    Args:
        params: the reducer's parameters; it appends to the list.
        names: names of their reductions; likewise.
        operation: op, prescale and postscale.
        process_set: the ranks that reduce.
        as_dense: send them as dense ones.
        is_sparse: every gradient is sparse, those that are missing too.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        names: Sequence[str],
        operation: tuple[int, float, float],
        process_set: ProcessSet,
        as_dense: bool,
        is_sparse: bool,
    ) -> None:
        self._params = params
        self._names = names
        self._operation = operation
        self._process_set = process_set
        self._gathers = operation[0] in (Average, Sum) and not as_dense
        self._layouts = GradientLayouts(process_set, is_sparse)
        self._held: dict[int, None] = {}  # indices, in order
        self._densified: list[_Densified] = []

    @property
    def is_pending(self) -> bool:
        """Whether gradients wait here for the end of the step, or for their dense form."""
        return bool(self._held or self._densified)

    def add(self, count: int) -> None:
        """So many parameters more."""
        self._layouts.add(count)

    def agree(self) -> None:
        """Find out with the other ranks which gradients are sparse; blocks while some are open."""
        if self._params:
            self._layouts.agree(self._params, f"{plain_name(self._names[0])}.layouts")

    def know(self, indices: Iterable[int]) -> bool:
        """Whether all ranks know how these travel, so that they may leave as a group."""
        return self._layouts.cover(indices)

    def hold(self, indices: list[int]) -> list[int]:
        """Set the sparse ones aside until the end of the step; the others."""
        if self._layouts.are_dense or not self._gathers:
            return indices
        sparse = self._layouts.sparse
        others = []
        for index in indices:
            grad = self._params[index].grad
            is_sparse_here = grad is not None and grad.is_sparse
            if index in sparse or (is_sparse_here and not self._layouts.cover([index])):
                self._held[index] = None
            else:
                others.append(index)
        return others

    def release(self) -> list[int]:
        """Those that were set aside; after ``agree`` it is known which of them may be gathered."""
        held = list(self._held)
        self._held.clear()
        return held

    def zeros(self, index: int) -> Tensor:
        """A gradient of zeros in the parameter's layout."""
        param = self._params[index]
        sparse_dim = self._layouts.sparse.get(index)
        if sparse_dim is None:
            return torch.zeros_like(param, requires_grad=False)
        return empty_sparse(param, sparse_dim)

    @torch.no_grad()
    def densify(self, indices: Sequence[int], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Dense ones in place of sparse gradients; remembers where the result belongs."""
        dense = list(gradients)
        for position, (index, grad) in enumerate(zip(indices, gradients, strict=True)):
            if grad.is_sparse:
                dense[position] = grad.to_dense()
                entry = _Densified(self._params[index], dense[position], grad.sparse_dim())
                self._densified.append(entry)
        return dense

    def gather(self) -> Iterator[_Gathered]:
        """Start to reduce those that are set aside, one after the other."""
        for index in self.release():
            yield self._gather(index)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the reduced dense ones back as sparse ones."""
        for param, dense, sparse_dim in self._densified:
            param.grad = dense.to_sparse(sparse_dim)
        self._densified.clear()

    def drop(self) -> None:
        """Forget this step."""
        self._held.clear()
        self._densified.clear()

    @torch.no_grad()
    def _gather(self, index: int) -> _Gathered:
        op, prescale, postscale = self._operation
        param = self._params[index]
        sparse_dim = self._layouts.sparse[index]
        grad = param.grad
        rows = empty_sparse(param, sparse_dim) if grad is None else _to_sparse(grad, sparse_dim)
        if prescale != 1.0:
            rows = rows * prescale
        name = plain_name(self._names[index])
        wait = sparse_allreduce_async(rows, name, op, self._process_set)
        return _Gathered(param, postscale, wait)


def empty_sparse(param: Tensor, sparse_dim: int) -> Tensor:
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=param.device)
    values = torch.empty((0, *param.shape[sparse_dim:]), dtype=param.dtype, device=param.device)
    empty = torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)
    return empty.coalesce()


def _to_sparse(grad: Tensor, sparse_dim: int) -> Tensor:
    """``grad`` as a coalesced one with so many sparse dimensions, the same on every rank."""
    if grad.is_sparse and grad.sparse_dim() == sparse_dim:
        return grad.coalesce()
    return grad.to_dense().to_sparse(sparse_dim)
