"""What all our optimizers share: a class between the user's and ours, over the same contents."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from horovod.core.process_sets import ProcessSet
from horovod.torch.parameter_names import add_default_names


class WrappedOptimizer(torch.optim.Optimizer):
    """Base of the classes that ``wrap`` puts before an optimizer's own class."""

    _parameter_names: dict[Tensor, str]
    backward_passes_per_step: int
    # The arguments of DistributedOptimizer, for programs that read them.
    op: int
    process_set: ProcessSet
    gradient_predivide_factor: float
    _compression: Any

    @property
    def _handles(self) -> Mapping[Tensor, Any]:
        """The parameters whose gradients are under way; several share what is waited for."""
        return MappingProxyType({})

    @property
    def _allreduce_delay(self) -> Mapping[Tensor, int]:
        """How many backward passes each parameter's gradient still waits for."""
        return MappingProxyType({})

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Add up gradients of ``passes`` backward passes, >= 1, before each reduction."""
        check_passes(passes)
        self.backward_passes_per_step = passes

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters as the original does; they are reduced as well. Same on every rank."""
        super().add_param_group(param_group)
        add_default_names(self, self._parameter_names)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled: its hooks belong to the "
            "parameters of this process; use its state_dict()"
        )


W = TypeVar("W", bound=WrappedOptimizer)


def wrap(optimizer: torch.optim.Optimizer, ours: type[W]) -> W:
    """An object of a new class, derived from ``ours`` and the optimizer's; no constructor runs.

    It shares all that ``optimizer`` has, and its class has the same name.
    """
    original = type(optimizer)
    namespace = {"__module__": original.__module__, "__doc__": original.__doc__}
    subclass: type[W] = type(original.__name__, (ours, original), namespace)
    result = subclass.__new__(subclass)
    result.__dict__.update(optimizer.__dict__)
    # A scheduler made before wrapping has put its own ``step`` on the instance, which would bypass
    # ours, and expects calls there; it goes on adjusting the shared parameter groups.
    if result.__dict__.pop("step", None) is not None:
        optimizer._opt_called = True  # type: ignore[attr-defined]
    return result


def check_passes(passes: int) -> None:
    """``ValueError`` unless there is at least one backward pass per step."""
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step must be at least 1, found {passes}")
