"""What all our optimizers share, and the one with ``op=Adasum``.

A wrapped optimizer has the contents of the user's, and a class of ours before the user's class.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from horovod.core.operations import check_passes
from horovod.core.process_sets import ProcessSet
from horovod.torch.gradient_exchange import Exchange
from horovod.torch.parameters import add_default_names, operation_names
from horovod.torch.uncompiled import keep_uncompiled

_HOOK = -1  # a key that torch gives to no hook


class WrappedOptimizer(torch.optim.Optimizer):
    """Base of the classes that ``wrap`` puts before an optimizer's own class."""

    _parameter_names: dict[Tensor, str]
    backward_passes_per_step: int
    # The arguments of DistributedOptimizer, for programs that read them.
    op: int
    process_set: ProcessSet
    gradient_predivide_factor: float
    _compression: Any
    _is_unused = False  # it has to step, and has not yet

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        keep_uncompiled(cls)

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

    def expect_steps(self, title: str) -> None:
        """Warn if the original steps and this has not: a program did not assign what it got."""
        if "_optimizer_step_pre_hooks" in self.__dict__:  # else torch's constructor did not run
            self._optimizer_step_pre_hooks[_HOOK] = partial(_warn_if_original, title)
            self._is_unused = True

    def _note_first_step(self) -> None:
        self._optimizer_step_pre_hooks.pop(_HOOK, None)
        self._is_unused = False

    def _step_original(self, closure: Callable[[], Any] | None) -> Any:
        return super().step(closure) if closure is not None else super().step()

    def forget_shares(self) -> None:
        """Start from ``state`` alone; nothing to do by default."""

    def broadcast_rest(self, root_rank: int, process_set: ProcessSet) -> None:
        """Broadcast the state beside ``state``; nothing by default. All ranks of the set call it.

        ``broadcast_optimizer_state`` does, as its last part.
        """

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a DistributedOptimizer cannot be copied or pickled: its hooks belong to the "
            "parameters of this process; use its state_dict()"
        )


keep_uncompiled(WrappedOptimizer)


def _warn_if_original(title: str, optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """A hook of the original optimizer and of what wraps it, which share their hooks."""
    if not isinstance(optimizer, WrappedOptimizer):
        warnings.warn(
            f"{title}: step() of the optimizer that was given to it, before one of the optimizer "
            "that it returned: this rank trains alone. Use what it returns: "
            f"optimizer = hvd.{title}(optimizer, ...)",
            UserWarning,
            stacklevel=3,
        )


def check_optimizer(title: str, optimizer: object) -> None:
    """``ValueError`` if ``title`` cannot wrap this: it is no optimizer, or wrapped already."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"{title}: optimizer must be a torch.optim.Optimizer, found {optimizer!r}")
    if isinstance(optimizer, WrappedOptimizer):
        raise ValueError(
            f"{title}: this optimizer is distributed already; give the optimizer of torch itself"
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


_TOLD = ("found_inf", "grad_scale")


class SteppingAlone(WrappedOptimizer):
    """Base of optimizers that make the original step on this rank's own gradients.

    They communicate in ``step``, so a GradScaler has to call it on every rank.
    """

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler then always calls ``step``, telling ``found_inf`` and ``grad_scale``. It would
        # leave the step out on the rank with infinite gradients only, and the others would wait.
        return True

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def _step_alone(self, closure: Callable[[], Any] | None) -> Any:
        if self._is_unused:
            self._note_first_step()
        if self.__dict__.get("_step_supports_amp_scaling", False):
            return self._step_original(closure)
        # GradScaler has set these attributes on this object and deletes them afterwards. The
        # original does not know them.
        told = {key: self.__dict__.pop(key) for key in _TOLD if key in self.__dict__}
        try:
            if "found_inf" in told and told["found_inf"].item():
                return None
            self._unscale(told.get("grad_scale"))
            return self._step_original(closure)
        finally:
            self.__dict__.update(told)

    @torch.no_grad()
    def _unscale(self, grad_scale: Tensor | None) -> None:
        if grad_scale is None:
            return
        factor = grad_scale.double().reciprocal().item()
        for param in (param for group in self.param_groups for param in group["params"]):
            if param.grad is not None:
                param.grad.mul_(factor)


class _AdasumOptimizer(SteppingAlone):
    """What ``op=Adasum`` adds to an optimizer class; never made on its own.

    Every rank makes the original optimizer's step on its own gradients. The differences between the
    parameters after and before it are reduced with Adasum, all in one batch, and added to where the
    parameters started. No operation is pending outside of ``step``.
    """

    _exchange: Exchange
    _trained: dict[Tensor, None]  # every parameter that ever needed a gradient, in order

    def _begin(self, names: dict[Tensor, str], passes: int, exchange: Exchange) -> None:
        """In place of a constructor. ``names``: of all parameters."""
        self._parameter_names = names
        self.backward_passes_per_step = passes
        self._exchange = exchange
        self._trained = {}

    def synchronize(self) -> None:
        """Do nothing: gradients are not reduced, ``step`` reduces what it changed."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Refuse: there is no step without communication here.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("skip_synchronize() has no meaning with op=Adasum: step() reduces")
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the original step, and combine its effect with that of the other ranks.

        Blocks until all ranks make it. A rank without gradients takes part with no change; so does
        one whose gradients a GradScaler finds infinite.

        Args:
            closure: recomputes the loss; called as the original does, without communication.

        Returns:
            What the original ``step`` returns.

        Raises:
            HorovodInternalError: the reduction failed; the parameters are unspecified.
        """
        self._note_trainable()
        starts = [param.detach().clone() for param in self._trained]
        result = self._step_alone(closure)
        self._combine(starts)
        return result

    # Optimizer wraps ``step`` of each class to run step hooks; the original's is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]

    def _note_trainable(self) -> None:
        """Note the trainable parameters: they are sent in all later steps, also when frozen."""
        params = (param for group in self.param_groups for param in group["params"])
        self._trained.update(dict.fromkeys(param for param in params if param.requires_grad))

    @torch.no_grad()
    def _combine(self, starts: list[Tensor]) -> None:
        if not starts:
            return
        params = list(self._trained)
        deltas = [param - start for param, start in zip(params, starts, strict=True)]
        names = operation_names(params, self._parameter_names)
        self._exchange.start(names, deltas).finish()
        for param, start, delta in zip(params, starts, deltas, strict=True):
            param.copy_(start.add_(delta))
