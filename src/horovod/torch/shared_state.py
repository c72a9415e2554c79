"""The state of an optimizer whose step ranks share: cut for shards, and gathered from them.

Whole, it is what the optimizer itself would keep: by parameter, tensors of its shape and values of
one element, such as the number of steps. A shard's tensors hold the elements that the rank owns.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from horovod.core.process_sets import ProcessSet
from horovod.numpy.objects import broadcast_object
from horovod.torch import adapter
from horovod.torch.shares import Unit

State = dict[Tensor, dict[Hashable, Any]]

# Entries of one element in torch's optimizers: they count steps, or depend on their number.
_SCALARS = ("step", "mu_product", "eta", "mu")


def scalars_of(param: Tensor, state: Mapping[Tensor, Mapping[Hashable, Any]]) -> Hashable:
    """What parameters must have in common to share a unit: kinds of entries, and all scalars."""
    entries = state.get(param, {})
    return tuple(
        (key, _number(value) if _is_scalar(key, value, param) else None)
        for key, value in entries.items()
    )


def adopt(unit: Unit, whole: State, shards: State, name_of: Mapping[Tensor, str]) -> None:
    """Move the state of the unit's parameters, if there is some, from ``whole`` to ``shards``.

    Raises:
        ValueError: a tensor has neither one element nor its parameter's shape.
    """
    if not any(whole.get(param) for param in unit.params):
        return
    first = unit.params[0]
    found: dict[Hashable, Any] = {}
    for key, value in whole[first].items():
        if _is_scalar(key, value, first):
            found[key] = value.clone() if isinstance(value, Tensor) else value
            continue
        tensors = [whole[param][key] for param in unit.params]
        for param, tensor in zip(unit.params, tensors, strict=True):
            if tensor.shape != param.shape:
                raise ValueError(
                    f"DistributedOptimizer: sharded=True: state {key!r} of {name_of[param]!r} has "
                    f"shape {list(tensor.shape)}, not the parameter's {list(param.shape)}"
                )
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        found[key] = unit.own(flat).clone()
    shards[unit.shard] = found
    for param in unit.params:
        del whole[param]


def gather_state(
    name: str, units: Sequence[Unit], shards: State, process_set: ProcessSet, everywhere: bool
) -> State:
    """The whole state; empty on the ranks that do not want it. Blocks until all ranks call it.

    ``name``: of the operations. ``everywhere``: all ranks want it, else the first one of the set.
    """
    root = (process_set.ranks or [0])[0]
    # A rank that owns no element of a unit has no state of it.
    kinds = [
        [(key, _kind(value)) for key, value in shards.get(unit.shard, {}).items()] for unit in units
    ]
    kinds = broadcast_object(kinds, root, name, process_set)
    result: State = {}
    for number, (unit, entries) in enumerate(zip(units, kinds, strict=True)):
        for key, kind in entries:
            own = shards.get(unit.shard, {}).get(key)
            parts = _parts(unit, own, kind, f"{name}.{number}.{key}", process_set, everywhere)
            for param, part in zip(unit.params, parts, strict=bool(parts)):
                result.setdefault(param, {})[key] = part
    return result


def _parts(
    unit: Unit, own: Any, kind: Any, name: str, process_set: ProcessSet, everywhere: bool
) -> Sequence[Any]:
    """An entry for each parameter of the unit; none where it is not wanted."""
    is_root = process_set.rank() == 0
    if not isinstance(kind, _Elements):
        wanted = everywhere or is_root
        return [_copy(kind) for _ in unit.params] if wanted else []
    if own is None:
        own = torch.empty(0, dtype=kind.dtype, device=unit.shard.device)
    if everywhere:
        return unit.cut(adapter.allgather(own, name, process_set))
    splits = [0] * (process_set.size() or 1)
    splits[0] = own.numel()
    counts = torch.tensor(splits, dtype=torch.int32, device="cpu")
    flat = adapter.alltoall(own, counts, name, process_set)[0]
    return unit.cut(flat) if is_root else []


class _Elements:
    """Stands for a tensor of a shard: each rank has its elements."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype


def _kind(value: Any) -> Any:
    is_elements = isinstance(value, Tensor) and value.dim() > 0
    return _Elements(value.dtype) if is_elements else value


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _is_scalar(key: Hashable, value: Any, param: Tensor) -> bool:
    if not isinstance(value, Tensor):
        return True
    return value.dim() == 0 and (param.dim() > 0 or key in _SCALARS)
