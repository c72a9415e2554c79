"""Allreduce of sparse tensors: indices and values are gathered, nothing is made dense."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from horovod.core.operations import Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.errors import HorovodInternalError
from horovod.torch import adapter


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet = global_process_set,
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
    values = tensor._values().contiguous()
    # The values first: if their dtype is refused, nothing is under way.
    of_values = adapter.allgather_async(values, _part(name, "values"), process_set)
    of_indices = adapter.allgather_async(indices, _part(name, "indices"), process_set)

    def synchronize() -> Tensor:
        try:
            all_indices = adapter.synchronize(of_indices)
        except HorovodInternalError:
            _end(of_values)
            raise
        all_values = adapter.synchronize(of_values)
        _check_entries(tensor, name, all_indices, all_values)
        if op == Average:
            size = process_set.size() or 1
            is_float = all_values.dtype.is_floating_point
            all_values = torch.div(all_values, size, rounding_mode=None if is_float else "trunc")
        return torch.sparse_coo_tensor(
            all_indices.t(), all_values, tensor.shape, check_invariants=False
        )

    return synchronize


def _check_entries(tensor: Tensor, name: str | None, indices: Tensor, values: Tensor) -> None:
    """Refuse gathered entries that kernels would write elsewhere, since kernels do not look."""
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


def _end(handle: int) -> None:
    """Wait for an operation whose result is not used, so that its name is free again."""
    try:
        adapter.synchronize(handle)
    except HorovodInternalError:
        return
