"""Give all ranks one rank's parameters, optimizer state or objects; gather objects from all.

Called once before training and after a restore, so these favour exactness over speed. Optimizer
state is compared first: another layout on one rank is an error on all. ``broadcast_parameters``
compares tensor by tensor; one that only some ranks have is left to the stall check. A tensor of a
dtype that the engine does not know travels as its bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.core.world import rank
from horovod.numpy.objects import allgather_object, broadcast_object
from horovod.torch import adapter
from horovod.torch.optimizer_state import StateLayout, apply_layout, describe_state, find_conflict
from horovod.torch.sparse_gradients import empty_sparse

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(
    params: Any, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite tensors on all ranks with the root's; blocks until all are there.

    Args:
        params: ``model.state_dict()`` or another dict of name to tensor, or a list of ``(name,
            tensor)`` tuples or plain tensors. Any shapes and dtypes, in any memory order; the same
            names, shapes and dtypes on every rank; a name that only some ranks have is waited for
            (see the stall check). ``None`` values are skipped.
        root_rank: the rank whose values all ranks get; the same on every rank.
        process_set: the ranks that take part; this process and the root are among them.

    Raises:
        ValueError: ``params`` is something else, for example a generator, or there is no such root.
        HorovodInternalError: ranks disagree about a tensor, or a rank was lost.
    """
    _broadcast_in_place(_named_tensors(params), root_rank, process_set)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give the optimizers of all ranks the root's state and options; blocks until done.

    Afterwards state entries have the root's shapes and dtypes on every rank, and parameters without
    state on the root have none anywhere, whatever they had before: one restored checkpoint on the
    root is enough. Parameters are not touched, and no step is made. Each one that requires a
    gradient and has none gets zeros, which programs count on.

    Args:
        optimizer: any optimizer, over the same parameters on every rank.
        root_rank: the rank whose state all ranks get; the same on every rank.
        model: tells which parameters belong to sparse embeddings, whose zeros are sparse.
        process_set: the ranks that take part; this process and the root are among them.

    Raises:
        ValueError: this is no optimizer, or there is no such root; or the optimizer has other
            parameters on some rank, which is raised on all ranks.
        HorovodInternalError: a rank was lost.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"broadcast_optimizer_state: expected an optimizer, found {type(optimizer).__name__}"
        )
    check_process_set(process_set)
    _add_zero_gradients(optimizer, model)
    if process_set.included() and process_set.ranks == [root_rank]:
        return
    is_root = rank() == root_rank
    layout: StateLayout = broadcast_object(
        describe_state(optimizer) if is_root else None, root_rank, "optimizer_state", process_set
    )
    conflict = find_conflict(optimizer, layout)
    conflicts = allgather_object(conflict, "optimizer_state.conflict", process_set)
    _raise_for_ranks("broadcast_optimizer_state", conflicts, process_set)
    _broadcast_in_place(apply_layout(optimizer, layout, keep=is_root), root_rank, process_set)


def _add_zero_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """Sparse where backward makes sparse ones: a dense one would stay dense."""
    sparse = {
        module.weight
        for module in (() if model is None else model.modules())
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
    }
    for param in (param for group in optimizer.param_groups for param in group["params"]):
        if param.grad is None and param.requires_grad:
            is_sparse = isinstance(optimizer, torch.optim.SparseAdam) or param in sparse
            zeros = empty_sparse(param, 1) if is_sparse else torch.zeros_like(param)
            param.grad = zeros.detach()


def _named_tensors(params: Any) -> list[tuple[str, Tensor]]:
    """What ``broadcast_parameters`` sends, in the same order on every rank."""
    if isinstance(params, dict):
        entries: list[Any] = sorted(params.items())
    elif isinstance(params, list):
        entries = [
            entry if isinstance(entry, tuple) else (f"parameter.{index}", entry)
            for index, entry in enumerate(params)
        ]
    else:
        raise ValueError(
            f"invalid params of type {type(params).__name__}: broadcast_parameters takes "
            "model.state_dict(), another dict, or a list such as list(model.named_parameters())"
        )
    entries = [(name, tensor) for name, tensor in entries if tensor is not None]
    for name, tensor in entries:
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"invalid params: {name!r} is of type {type(tensor).__name__}, not a tensor; "
                "send other objects by broadcast_object"
            )
    return entries


@torch.no_grad()
def _broadcast_in_place(
    named: list[tuple[str, Tensor]], root_rank: int, process_set: ProcessSet
) -> None:
    """Broadcast all tensors at once; in logical order where they are not contiguous."""
    started: list[tuple[int, Tensor, Tensor]] = []
    failure: Exception | None = None
    for name, tensor in named:
        dense = tensor.detach().contiguous()
        wire = dense if dense.dtype in adapter.DTYPES else dense.reshape(-1).view(torch.uint8)
        try:
            handle = adapter.broadcast_async_(wire, root_rank, name, process_set)
            started.append((handle, tensor, dense))
        except (ValueError, RuntimeError) as error:
            failure = error
            break
    for handle, tensor, dense in started:  # all are waited for, also after a failure
        try:
            adapter.synchronize(handle)
        except RuntimeError as error:
            failure = failure or error
            continue
        if not tensor.is_contiguous():
            tensor.copy_(dense)
    if failure is not None:
        raise failure


def _raise_for_ranks(operation: str, reasons: list[str | None], process_set: ProcessSet) -> None:
    """Raise ``ValueError`` on every rank alike if some rank has a reason."""
    members = process_set.ranks or []
    found = [f"rank {r} {reason}" for r, reason in zip(members, reasons, strict=True) if reason]
    if found:
        raise ValueError(f"{operation}: " + "; ".join(found))
