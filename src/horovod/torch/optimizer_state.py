"""The layout of an optimizer's state: described on one rank, taken over on another.

The root pickles a ``StateLayout``: options and plain values as they are, dense tensors as shape and
dtype only. The others make room for those tensors; their contents then travel as tensors.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorEntry:
    """Stands for a dense tensor of the state."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_beside_parameter: bool  # on its parameter's device, else on the CPU


@dataclass(frozen=True)
class StateLayout:
    """Everything of an optimizer but its parameters and the contents of dense state tensors."""

    groups: list[dict[str, Any]]  # options by parameter group
    parameter_shapes: list[list[tuple[int, ...]]]  # by parameter group
    state: dict[int, dict[Hashable, Any]]  # by running number of the parameter
    shared: dict[Hashable, Any]  # entries that belong to no parameter


def describe_state(optimizer: torch.optim.Optimizer) -> StateLayout:
    """The layout of this optimizer's state."""
    groups = optimizer.param_groups
    params = _parameters(optimizer)
    known = set(params)
    return StateLayout(
        groups=[{key: v for key, v in group.items() if key != "params"} for group in groups],
        parameter_shapes=_parameter_shapes(optimizer),
        state={
            index: {
                key: _describe_entry(value, param) for key, value in optimizer.state[param].items()
            }
            for index, param in enumerate(params)
            if param in optimizer.state
        },
        shared={key: value for key, value in optimizer.state.items() if key not in known},
    )


def find_conflict(optimizer: torch.optim.Optimizer, layout: StateLayout) -> str | None:
    """Why this optimizer cannot take the layout over; None if it can."""
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
        _apply_options(optimizer, layout.groups)
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
        _apply_shared(optimizer, layout.shared, set(params))
    return tensors


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _parameter_shapes(optimizer: torch.optim.Optimizer) -> list[list[tuple[int, ...]]]:
    return [[tuple(param.shape) for param in group["params"]] for group in optimizer.param_groups]


def _describe_entry(value: Any, param: Tensor) -> Any:
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return value
    return TensorEntry(tuple(value.shape), value.dtype, value.device == param.device)


def _apply_options(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
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


def _apply_shared(
    optimizer: torch.optim.Optimizer, shared: dict[Hashable, Any], params: set[Tensor]
) -> None:
    state: dict[Any, Any] = optimizer.state
    for key in [key for key in state if key not in params]:
        del state[key]
    state.update(shared)
