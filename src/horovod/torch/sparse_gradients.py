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

from horovod.core.collectives import common_past
from horovod.core.handles import wait_for_all
from horovod.core.operations import Average, Max, Sum
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.errors import HorovodInternalError, MismatchError
from horovod.torch import adapter
from horovod.torch.gradients import is_float
from horovod.torch.parameters import plain_name
from horovod.torch.uncompiled import keep_uncompiled


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Start reducing a sparse tensor over all ranks.

    Args:
        tensor: sparse COO, the same shape and dtype on every rank, any number of entries.
        name: name of the operation, the same on every rank; ``<name>.indices`` and
            ``<name>.values`` are what is gathered. None: running numbers.
        op: ``Average``; with any other one the entries of all ranks are summed.
        process_set: the ranks that take part; this process must be one of them.

    Returns:
        A function without arguments that waits and returns a sparse COO tensor with the entries of
        all ranks in rank order, not coalesced: adding up duplicates makes the sum.

    Raises:
        ValueError: the tensor is not sparse COO, or this process is not in the set.
        HorovodInternalError: from the function: ranks disagree, a rank was lost, or an entry has no
            place in the tensor.
    """
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce: expected a sparse COO tensor, found {tensor.layout}")
    # One row per entry, since allgather joins rows.
    indices = tensor._indices().t().contiguous()
    values = tensor._values().resolve_conj().contiguous()
    # The values first: if their dtype is refused, nothing is under way.
    of_values = adapter.allgather_async(values, _part(name, "values"), process_set)
    of_indices = adapter.allgather_async(indices, _part(name, "indices"), process_set)

    def synchronize() -> Tensor:
        handles = [of_indices, of_values]
        all_indices, all_values = wait_for_all(handles, adapter.synchronize)
        _check_entries(tensor, name, all_indices, all_values)
        if op == Average:
            size = process_set.size() or 1
            rounding = None if is_float(all_values) else "trunc"
            all_values = torch.div(all_values, size, rounding_mode=rounding)
        return _sparse(all_indices.t(), all_values, tensor.shape)

    keep_uncompiled(synchronize)
    return synchronize


def _check_entries(tensor: Tensor, name: str | None, indices: Tensor, values: Tensor) -> None:
    """Refuse entries outside of the tensor: kernels do not check and would write elsewhere."""
    title = "sparse_allreduce" if name is None else f"sparse_allreduce {name!r}"
    if len(indices) != len(values):
        raise HorovodInternalError(f"{title}: {len(indices)} indices came for {len(values)} values")
    if not indices.numel():
        return
    bounds = torch.stack(indices.aminmax(dim=0), 1).tolist()
    for dim, (lowest, highest) in enumerate(bounds):
        if lowest < 0 or highest >= tensor.shape[dim]:
            raise HorovodInternalError(
                f"{title}: indices {lowest} to {highest} came for dimension {dim}, expected 0 to "
                f"{tensor.shape[dim] - 1}; ranks have tensors of different shapes, or the data was "
                "altered on its way, which HOROVOD_LINK_PROTECTION=integrity prevents"
            )


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"


# Codes of a layout; the codes between are numbers of sparse dimensions.
_UNSEEN = 0
_DENSE = 255


class GradientLayouts:
    """The layouts of the parameters' gradients that the ranks have agreed on, by index.

    A rank whose parameter got no gradient cannot know that it is sparse elsewhere. So the ranks
    agree once per parameter, in the first step in which some rank has a gradient for it: the
    layouts' codes are reduced by Max. Dense wins, because a dense gradient may have left before.

    Args:
        process_set: the ranks that agree; all list the same parameters in the same order.
        is_sparse: the optimizer accepts sparse gradients only, so there is nothing to ask.
    """

    def __init__(self, process_set: ProcessSet, is_sparse: bool) -> None:
        self._process_set = process_set
        self._first = 1 if is_sparse else _UNSEEN
        self._codes: list[int] = []
        self._unseen: list[int] = []  # indices that are open
        self._agreed_since = common_past()
        self.sparse: dict[int, int] = {}  # number of sparse dimensions by index
        self.are_dense = True  # whether all are known to be dense

    def add(self, count: int) -> None:
        """Add ``count`` parameters."""
        self._codes.extend([self._first] * count)
        self._note_codes()

    def cover(self, indices: Iterable[int]) -> bool:
        """Whether the ranks of this world agreed about all these parameters."""
        codes = self._codes
        return self._agreed_since == common_past() and all(codes[index] for index in indices)

    def agree(self, params: Sequence[Tensor], name: str) -> None:
        """Ask the other ranks about those that are open; blocks until all of them ask.

        In a new world all are open again, and after a ``join``: some rank may not have agreed.
        """
        if self._agreed_since != common_past():
            self._agreed_since = common_past()
            self._codes = [self._first] * len(params)
            self._note_codes()
        unseen = self._unseen
        if not unseen:
            return
        own = [_code_of(params[index].grad) for index in unseen]
        codes = torch.tensor(own, dtype=torch.uint8, device="cpu")
        try:
            adapter.allreduce_(codes, name=name, op=Max, process_set=self._process_set)
        except MismatchError as error:
            raise _other_parameters(error, len(params)) from None
        for index, code in zip(unseen, codes.tolist(), strict=True):
            self._codes[index] = code
        self._note_codes()

    def _note_codes(self) -> None:
        codes = list(enumerate(self._codes))
        self._unseen = [index for index, code in codes if code == _UNSEEN]
        self.sparse = {index: code for index, code in codes if _UNSEEN < code < _DENSE}
        self.are_dense = all(code == _DENSE for code in self._codes)


def _other_parameters(error: MismatchError, count: int) -> MismatchError:
    """``error`` of the agreement, whose shape says nothing to those who have not called it."""
    return MismatchError(
        f"{error}. Ranks agree here on each parameter of the optimizer, of which this rank has "
        f"{count}: give the optimizer of every rank the same parameters",
        ranks=error.ranks,
        host=error.host,
        operation=error.operation,
    )


def _code_of(grad: Tensor | None) -> int:
    if grad is None:
        return _UNSEEN
    return grad.sparse_dim() if grad.layout is torch.sparse_coo else _DENSE


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
        """Add ``count`` parameters."""
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
            return torch.zeros_like(param, dtype=gradient_dtype(param), requires_grad=False)
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


def gradient_dtype(param: Tensor) -> torch.dtype:
    """The dtype of the parameter's gradients, which newer versions of torch let programs choose."""
    return getattr(param, "grad_dtype", None) or param.dtype


def empty_sparse(param: Tensor, sparse_dim: int) -> Tensor:
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=param.device)
    shape = (0, *param.shape[sparse_dim:])
    values = torch.empty(shape, dtype=gradient_dtype(param), device=param.device)
    return _sparse(indices, values, param.shape).coalesce()


def _sparse(indices: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    """Where the values are; torch would take the program's default device."""
    return torch.sparse_coo_tensor(
        indices, values, shape, device=values.device, check_invariants=False
    )


def _to_sparse(grad: Tensor, sparse_dim: int) -> Tensor:
    """``grad`` as a coalesced one with so many sparse dimensions, the same on every rank."""
    if grad.is_sparse and grad.sparse_dim() == sparse_dim:
        return grad.coalesce()
    return grad.to_dense().to_sparse(sparse_dim)
