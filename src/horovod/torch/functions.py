"""Give all ranks one rank's parameters, optimizer state or objects; gather objects from all.

Called once before training and after a restore, so these favour exactness over speed. Optimizer
state is compared first: another layout on one rank is an error on all. ``broadcast_parameters``
compares tensor by tensor; one that only some ranks have is left to the stall check. A tensor of a
dtype that the engine does not know travels as its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor

from horovod.core.handles import wait_for_all
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.core.world import rank
from horovod.numpy.objects import allgather_object, broadcast_object
from horovod.torch import adapter
from horovod.torch.sparse_gradients import empty_sparse, gradient_dtype
from horovod.torch.wrapped_optimizer import WrappedOptimizer

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


class TensorEntry(NamedTuple):
    """Stands for a dense tensor of the state."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_beside_parameter: bool  # on its parameter's device, else on the CPU


class StateLayout(NamedTuple):
    """Everything of an optimizer but its parameters and the contents of dense state tensors.

    The root pickles it: options and plain values as they are, dense tensors as shape and dtype
    only. The others make room for those tensors; their contents then travel as tensors.
    """

    optimizer: str  # the name of its class, which is that of the one that Horovod has wrapped
    groups: list[dict[str, Any]]  # options by parameter group
    parameter_shapes: list[list[tuple[int, ...]]]  # by parameter group
    state: dict[int, dict[Hashable, Any]]  # by running number of the parameter
    shared: dict[Hashable, Any]  # entries that belong to no parameter
    is_whole: bool  # False: the root has shared its steps, and each rank has a part of the state


def describe_state(optimizer: torch.optim.Optimizer) -> StateLayout:
    """The layout of this optimizer's state."""
    params = _parameters(optimizer)
    known = set(params)
    return StateLayout(
        optimizer=type(optimizer).__name__,
        groups=describe_options(optimizer),
        parameter_shapes=_parameter_shapes(optimizer),
        state={
            index: {
                key: _describe_entry(value, param) for key, value in optimizer.state[param].items()
            }
            for index, param in enumerate(params)
            if param in optimizer.state
        },
        shared={key: value for key, value in optimizer.state.items() if key not in known},
        is_whole=not getattr(optimizer, "is_shared", False),
    )


def digest_of_options(optimizer: torch.optim.Optimizer) -> str:
    """Equal only for equal options and shapes of parameters; empty if they cannot be pickled."""
    return digest_and_size((describe_options(optimizer), _parameter_shapes(optimizer)))[0]


def digest_and_size(objects: Any) -> tuple[str, int]:
    """A digest, equal only for equal objects, if not for all of them, and bytes when pickled.

    The digest is empty if they cannot be pickled.
    """
    try:
        pickled = cloudpickle.dumps(objects)
    except Exception:  # from the code of an object's own class
        return "", 0
    return hashlib.sha256(pickled).hexdigest(), len(pickled)


def describe_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The options of each parameter group."""
    groups = optimizer.param_groups
    return [{key: v for key, v in group.items() if key != "params"} for group in groups]


def find_conflict(optimizer: torch.optim.Optimizer, layout: StateLayout) -> str | None:
    """Why this optimizer cannot take the layout over; None if it can."""
    if (own := type(optimizer).__name__) != layout.optimizer:
        return f"has {own}, the root {layout.optimizer}"
    found = _parameter_shapes(optimizer)
    expected = layout.parameter_shapes
    if found == expected:
        return None
    if [len(group) for group in found] != [len(group) for group in expected]:
        return (
            f"has parameter groups of {[len(group) for group in found]} parameters, "
            f"the root of {[len(group) for group in expected]}"
        )
    group, index = next(
        (group, index)
        for group, shapes in enumerate(found)
        for index, shape in enumerate(shapes)
        if shape != expected[group][index]
    )
    return (
        f"has shape {list(found[group][index])} at group {group} index {index}, "
        f"the root {list(expected[group][index])}"
    )


def apply_layout(
    optimizer: torch.optim.Optimizer, layout: StateLayout, keep: bool
) -> list[tuple[str, Tensor]]:
    """Take the layout over, unless ``keep``; the dense state tensors by name, in layout order.

    Tensors that fit already stay the same objects. Contents of new ones are unspecified.
    """
    if not keep:
        apply_options(optimizer, layout.groups)
    params = _parameters(optimizer)
    tensors: list[tuple[str, Tensor]] = []
    for index, param in enumerate(params):
        entries = layout.state.get(index)
        if entries is None:
            optimizer.state.pop(param, None)
            continue
        if not keep:
            _apply_entries(optimizer.state[param], entries, param)
        state = optimizer.state[param]
        tensors.extend(
            (f"optimizer_state.{index}.{key}", state[key])
            for key, entry in entries.items()
            if isinstance(entry, TensorEntry)
        )
    if not keep:
        whole: dict[Any, Any] = optimizer.state
        for key in whole.keys() - params:
            del whole[key]
        whole.update(layout.shared)
    return tensors


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _parameter_shapes(optimizer: torch.optim.Optimizer) -> list[list[tuple[int, ...]]]:
    return [[tuple(param.shape) for param in group["params"]] for group in optimizer.param_groups]


def _describe_entry(value: Any, param: Tensor) -> Any:
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return value
    return TensorEntry(tuple(value.shape), value.dtype, value.device == param.device)


def apply_options(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """Take over the options of each parameter group, of which there are equally many."""
    for own, options in zip(optimizer.param_groups, groups, strict=True):
        for key in own.keys() - options.keys() - {"params"}:
            del own[key]
        for key, value in options.items():
            if _fits(own.get(key), value):
                own[key].copy_(value)  # a captured learning rate must stay the same tensor
            else:
                own[key] = value


def _fits(current: Any, value: Any) -> bool:
    return (
        isinstance(current, Tensor)
        and isinstance(value, Tensor)
        and current.shape == value.shape
        and current.dtype == value.dtype
    )


def _apply_entries(own: dict[Hashable, Any], entries: dict[Hashable, Any], param: Tensor) -> None:
    taken = {
        key: _room_for(own.get(key), entry, param) if isinstance(entry, TensorEntry) else entry
        for key, entry in entries.items()
    }
    own.clear()
    own.update(taken)


def _room_for(current: Any, entry: TensorEntry, param: Tensor) -> Tensor:
    """A tensor for the root's contents: the current one if it fits."""
    if (
        isinstance(current, Tensor)
        and current.layout is torch.strided
        and tuple(current.shape) == entry.shape
        and current.dtype == entry.dtype
    ):
        return current
    if entry.is_beside_parameter and entry.shape == tuple(param.shape):
        return torch.empty_like(param, dtype=entry.dtype, requires_grad=False)
    device = param.device if entry.is_beside_parameter else torch.device("cpu")
    return torch.empty(entry.shape, dtype=entry.dtype, device=device)


def broadcast_parameters(
    params: Any, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite tensors on all ranks with the root's; blocks until all are there.

    Args:
        params: ``model.state_dict()`` or another dict of name to tensor, or a list of ``(name,
            tensor)`` tuples or plain tensors. Any shapes and dtypes, in any memory order; the same
            names, shapes and dtypes on every rank; ranks wait for a name that only some of
            them have (see the stall check). ``None`` values are skipped.
        root_rank: the rank whose values all ranks get; the same on every rank.
        process_set: the ranks that take part; this process and the root are among them.

    Raises:
        ValueError: ``params`` is something else, for example a generator, or has a sparse tensor;
            or there is no such root.
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
        optimizer: any optimizer, of the same class and over the same parameters on every rank.
        root_rank: the rank whose state all ranks get; the same on every rank.
        model: tells which parameters belong to sparse embeddings, whose zeros are sparse.
        process_set: the ranks that take part; this process and the root are among them.

    Raises:
        ValueError: this is no optimizer, or there is no such root; or the optimizer is of another
            class or has other parameters on some rank, which is raised on all ranks.
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
    members = process_set.ranks or []
    found = [f"rank {r} {text}" for r, text in zip(members, conflicts, strict=True) if text]
    if found:  # on every rank alike
        raise ValueError(f"broadcast_optimizer_state: {'; '.join(found)}")
    _broadcast_in_place(apply_layout(optimizer, layout, keep=is_root), root_rank, process_set)
    if isinstance(optimizer, WrappedOptimizer):
        if layout.is_whole and not is_root:
            optimizer.forget_shares()
        optimizer.broadcast_rest(root_rank, process_set)


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
            dtype = gradient_dtype(param)
            zeros = empty_sparse(param, 1) if is_sparse else torch.zeros_like(param, dtype=dtype)
            param.grad = zeros.detach()


def _named_tensors(params: Any) -> list[tuple[str, Tensor]]:
    """The tensors that ``broadcast_parameters`` sends, in the same order on every rank."""
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
        if tensor.layout != torch.strided:
            raise ValueError(
                f"invalid params: {name!r} is not dense ({tensor.layout}); leave it out, and send "
                "it by broadcast_object"
            )
    return entries


@torch.no_grad()
def _broadcast_in_place(
    named: list[tuple[str, Tensor]], root_rank: int, process_set: ProcessSet
) -> None:
    """Broadcast all tensors at once; in logical order where they are not contiguous."""

    def start() -> Iterator[tuple[int, Tensor, Tensor]]:
        for name, tensor in named:
            dense = tensor.detach().contiguous()
            wire = dense if dense.dtype in adapter.DTYPES else dense.reshape(-1).view(torch.uint8)
            yield adapter.broadcast_async_(wire, root_rank, name, process_set), tensor, dense

    def finish(started: tuple[int, Tensor, Tensor]) -> None:
        handle, tensor, dense = started
        adapter.synchronize(handle)
        if not tensor.is_contiguous():
            tensor.copy_(dense)

    wait_for_all(start(), finish)
