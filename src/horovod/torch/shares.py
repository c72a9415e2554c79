"""Which elements of the parameters this rank owns where ranks share the optimizer's step.

The elements of the parameters lie in *units*. A large parameter is a unit: the rank's part of it is
stepped where it is. Small ones are joined in a unit that has memory of its own, so that the step
takes a few long tensors and not hundreds of short ones. Every rank owns a run of each unit's
elements, as a reducescatter of the engine splits them.

The optimizer's state is cut for shards, and gathered from them. Whole, it is what the optimizer
itself would keep: by parameter, tensors of its shape and values of one element, such as the number
of steps. A shard's tensors hold the elements that the rank owns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from horovod.core.operations import own_part
from horovod.core.process_sets import ProcessSet
from horovod.numpy.objects import broadcast_object
from horovod.torch import adapter
from horovod.torch.gradient_exchange import are_in_order

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
        if self._values is None and are_in_order(gradients[:1]):
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


_ELSEWHERE = "state_of_first_rank_only"  # in a ``state_dict`` of another rank


def marked(state: dict[str, Any]) -> dict[str, Any]:
    """A ``state_dict`` without the state that the ranks had."""
    return {**state, _ELSEWHERE: True}


def check_has_state(state: dict[str, Any]) -> None:
    """``ValueError`` if this ``state_dict`` is ``marked``: to load it would lose the state."""
    if _ELSEWHERE in state:
        raise ValueError(
            "load_state_dict: with sharded=True, state_dict() gives the state to the first rank of "
            "the process set only, and this is the dict of another rank, without state. Load that "
            "of the first rank on all ranks; or load it there, and let all ranks call "
            "broadcast_optimizer_state(optimizer, root_rank)"
        )


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
