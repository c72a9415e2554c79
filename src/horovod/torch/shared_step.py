"""The optimizer step that all ranks share: each one reduces, steps and sends its part.

``SharedStep`` is an ``Exchange`` of ``GradientReducer``: a batch of gradients becomes one
reducescatter, in place. Then an optimizer of the user's class steps this rank's shards, and one
allgather gives every rank the parameters. So ranks send what an allreduce sends, and each one keeps
the optimizer state of its part only.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from horovod.core.calls import exchange, reduction
from horovod.core.compression import Compressor
from horovod.core.operations import Intent, Kind
from horovod.core.process_sets import ProcessSet
from horovod.torch import adapter
from horovod.torch.shares import Place, Unit, adopt, gather_state, is_large, scalars_of

# What a GradScaler tells an optimizer that unscales gradients itself.
_SCALING = ("grad_scale", "found_inf")


class _Pending(NamedTuple):
    handle: int
    units: Sequence[Unit]
    wires: Sequence[tuple[Tensor, Any]]  # of each unit: what travels, and its context
    compression: type[Compressor]

    @torch.no_grad()
    def finish(self) -> None:
        adapter.synchronize(self.handle)
        for unit, (wire, context) in zip(self.units, self.wires, strict=True):
            if wire is not unit.gradient:
                reduced = self.compression.decompress(unit.own(wire), context)
                unit.own(unit.flat_gradient()).copy_(reduced)


class SharedStep:
    """The share of this rank in the steps of an optimizer.

    Args:
        optimizer: whose options count; parameters that have an entry in its ``state`` start from
            it.
        original: the class that steps.
        name_of: the name of each parameter; read when its batch comes first.
        operation: reduce op, prescale and postscale; the same on every rank.
        compression: what travels of gradients; the same on every rank.
        process_set: the ranks that share, this one among them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        original: type[torch.optim.Optimizer],
        name_of: dict[Tensor, str],
        operation: tuple[int, float, float],
        compression: type[Compressor],
        process_set: ProcessSet,
    ) -> None:
        # It owns this. A strong reference would keep both until the garbage collector runs.
        self._outer: Any = weakref.proxy(optimizer)
        # Copied once: later a scheduler or a program may put its own ``step`` on ``optimizer``.
        self._inner = _without_parameters(optimizer, original)
        self._name_of = name_of
        self._operation = operation
        self._compression = compression
        self._process_set = process_set
        self.forget()

    def forget(self) -> None:
        """Drop all shards and their state: the next step starts from the optimizer's ``state``."""
        self.has_stepped = False
        self._place: Place | None = None
        self._units: dict[tuple[str, ...], list[Unit]] = {}  # by the names of a batch
        self._is_checked = False  # that they have all parameters with gradients
        self._inner.state = defaultdict(dict)
        self._inner.param_groups = []

    @property
    def units(self) -> list[Unit]:
        """All units so far, in the same order on every rank."""
        return [unit for units in self._units.values() for unit in units]

    @property
    def has_state(self) -> bool:
        """Whether this rank keeps state of its shards; without momentum, SGD has none."""
        return bool(self._inner.state)

    def make_exchange(self, *_: Any) -> SharedStep:
        """Itself: it was made with what ``GradientReducer`` tells."""
        return self

    def start(self, names: list[str], gradients: list[Tensor]) -> _Pending:
        """Begin to reduce a batch: this rank's part of each unit's gradient, in place.

        Raises:
            ValueError: the world is another one than that of the last step, or two parameters have
                the same memory.
        """
        units = self._units_of(names)
        gradient_of = dict(zip(names, gradients, strict=True))
        wires = []
        for unit in units:
            unit.take_gradients([gradient_of[self._name_of[param]] for param in unit.params])
            wires.append(self._compression.compress(unit.flat_gradient()))
        call = reduction(Kind.REDUCESCATTER, None, *self._operation, self._process_set)
        inputs = [wire for wire, _ in wires]
        outputs = [unit.own(wire) for unit, wire in zip(units, inputs, strict=True)]
        # A thread in the background would only take the cores from the backward pass.
        is_overlapped = adapter.spare_cores() or gradients[0].is_cuda
        intent = Intent.COMPUTE if is_overlapped else Intent.WAIT
        handle = adapter.group_into_async(call, f"{names[0]}.shares", inputs, outputs, intent)
        return _Pending(handle, units, wires, self._compression)

    def gather_gradients(self) -> None:
        """Give every rank the reduced gradients, of which each has its part; blocks for all."""
        self._check_covered()
        flats = [(unit, unit.flat_gradient()) for unit in self.units]
        self._gather("gradients", [(unit.own(flat), flat) for unit, flat in flats])
        for unit, _ in flats:
            unit.put_gradients(self._gradients(unit))

    def step(self, closure: Callable[[], Any] | None, is_reduced: bool) -> Any:
        """Step this rank's shards, and give every rank the parameters; blocks for all.

        Args:
            closure: computes the loss and leaves whole gradients, reduced, in the parameters.
            is_reduced: whether there are such gradients without a closure. Else this rank has its
                parts of them, from ``start``.

        Raises:
            ValueError: the state does not fit the parameters, or a gradient is sparse or missing.
        """
        if closure is not None:
            closure = self._sharing(closure)
        else:
            self._prepare(is_reduced)
        result = self._inner.step(closure) if closure is not None else self._inner.step()
        self.has_stepped = True
        self._gather("parameters", [unit.values() for unit in self.units])
        for unit in self.units:
            unit.end_step()
        return result

    def gathered(self, everywhere: bool) -> dict[Tensor, dict[Hashable, Any]]:
        """The whole state of each parameter; empty where it is not wanted. Blocks for all.

        ``everywhere``: on all ranks, else on the first one of the set.
        """
        name, state = self._operation_name("state_dict"), self._inner.state
        return gather_state(name, self.units, state, self._process_set, everywhere)

    def _sharing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def closure_with_shares() -> Any:
            loss = closure()
            self._prepare(is_reduced=True)
            return loss

        return closure_with_shares

    def _prepare(self, is_reduced: bool) -> None:
        """Let the inner optimizer have options, values, gradients and state of the shards."""
        if is_reduced:
            for unit in self.units:
                unit.take_gradients(self._gradients(unit))
        self._check_covered()
        groups = self._outer.param_groups
        self._inner.param_groups = [{**group, "params": []} for group in groups]
        for key in _SCALING:
            self._inner.__dict__[key] = self._outer.__dict__.get(key)
        for unit in self.units:
            if unit.shard.numel():
                self._inner.param_groups[unit.group]["params"].append(unit.shard)
            unit.prepare_step()
            adopt(unit, self._outer.state, self._inner.state, self._name_of)

    def _check_covered(self) -> None:
        """``ValueError`` if a gradient is in no unit."""
        if self._is_checked:
            return
        covered = {param for unit in self.units for param in unit.params}
        for param in (param for group in self._outer.param_groups for param in group["params"]):
            if param.grad is not None and param not in covered:
                found = "is sparse; use sparse_as_dense=True"
                if not param.grad.is_sparse:
                    found = "is not reduced, for the parameter needs none; set it to None"
                raise ValueError(
                    f"DistributedOptimizer: sharded=True: the gradient of {self._name_of[param]!r} "
                    f"{found}"
                )
        self._is_checked = True

    def _check_distinct(self, made: list[Unit]) -> None:
        owners: dict[tuple[torch.device, int], Tensor] = {}
        units = [*self.units, *made]
        for param in (param for unit in units for param in unit.params if param.numel()):
            owner = owners.setdefault((param.device, param.data_ptr()), param)
            if owner is not param:
                raise ValueError(
                    f"DistributedOptimizer: sharded=True: {self._name_of[owner]!r} and "
                    f"{self._name_of[param]!r} have the same memory, and the update of one would "
                    "be lost; let both modules have one and the same Parameter"
                )

    def _gather(self, title: str, pairs: list[tuple[Tensor, Tensor]]) -> None:
        if not pairs:
            return
        call = exchange(Kind.ALLGATHER, self._process_set)
        name = self._operation_name(title)
        inputs, outputs = [own for own, _ in pairs], [flat for _, flat in pairs]
        adapter.synchronize(adapter.group_into_async(call, name, inputs, outputs, Intent.WAIT))

    def _operation_name(self, title: str) -> str:
        """Another one for each optimizer: several threads may step theirs at the same time."""
        first = self._name_of[self.units[0].params[0]] if self.units else "optimizer"
        return f"{first}.{title}"

    def _gradients(self, unit: Unit) -> list[Tensor]:
        found = []
        for param in unit.params:
            if param.grad is None:
                raise ValueError(
                    f"DistributedOptimizer: sharded=True: {self._name_of[param]!r} has no gradient "
                    "after synchronize(); set it to zeros instead of None"
                )
            found.append(param.grad)
        return found

    def _units_of(self, names: list[str]) -> list[Unit]:
        place = Place(self._process_set.rank() or 0, self._process_set.size() or 1)
        if self._place not in (None, place):
            assert self._place is not None
            raise ValueError(
                f"DistributedOptimizer: sharded=True: this was rank {self._place.rank} of "
                f"{self._place.size} at the last step and is rank {place.rank} of {place.size} "
                "now; load a whole state_dict, which elastic states do, before the next step"
            )
        self._place = place
        units = self._units.get(tuple(names))
        if units is None:
            units = list(self._make_units(names, place))
            self._check_distinct(units)
            self._units[tuple(names)] = units
            # Batches come in another order on a rank that lacks some gradients.
            self._units = dict(sorted(self._units.items()))
            self._is_checked = False
        return units

    def _make_units(self, names: list[str], place: Place) -> Iterable[Unit]:
        param_of = {name: param for param, name in self._name_of.items()}
        groups = enumerate(self._outer.param_groups)
        group_of = {param: number for number, group in groups for param in group["params"]}
        joined: dict[Hashable, list[Tensor]] = {}
        for param in (param_of[name] for name in names):
            if is_large(param):
                yield Unit([param], group_of[param], place)
                continue
            scalars = scalars_of(param, self._outer.state)
            key = (group_of[param], param.dtype, param.device, scalars)
            joined.setdefault(key, []).append(param)
        for params in joined.values():
            yield Unit(params, group_of[params[0]], place)


def _without_parameters(
    optimizer: torch.optim.Optimizer, original: type[torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    """A copy of class ``original``, without hooks; its caller empties parameters and state."""
    found: torch.optim.Optimizer = original.__new__(original)
    found.__dict__.update(optimizer.__dict__)
    for key in [key for key in found.__dict__ if key.endswith("_hooks")]:
        found.__dict__[key] = OrderedDict()
    return found
