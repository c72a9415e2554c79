"""``DistributedOptimizer`` with ``op=Adasum``: step alone first, then combine what changed.

Every rank makes the original optimizer's step on its own gradients. The differences between the
parameters after and before it are reduced with Adasum, all in one batch, and added to where the
parameters started. No operation is pending outside of ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from horovod.core.operations import Adasum
from horovod.core.process_sets import ProcessSet
from horovod.torch.gradient_exchange import (
    Compression,
    Exchange,
    ExchangeCompressor,
    PlainExchange,
)
from horovod.torch.parameter_names import operation_names
from horovod.torch.wrapped_optimizer import WrappedOptimizer, wrap

_TOLD = ("found_inf", "grad_scale")


class _AdasumOptimizer(WrappedOptimizer):
    """What ``make_adasum_optimizer`` adds to an optimizer class; never made on its own."""

    _exchange: Exchange
    _trained: dict[Tensor, None]  # every parameter that ever needed a gradient, in order

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

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler then always calls ``step``, telling ``found_inf`` and ``grad_scale``. It would
        # leave the step out on the rank with infinite gradients only, and the others would wait.
        return True

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def _note_trainable(self) -> None:
        """Once trained always sent: what an optimizer does to a frozen parameter is its affair."""
        params = (param for group in self.param_groups for param in group["params"])
        self._trained.update(dict.fromkeys(param for param in params if param.requires_grad))

    def _step_alone(self, closure: Callable[[], Any] | None) -> Any:
        if self.__dict__.get("_step_supports_amp_scaling", False):
            return self._step_original(closure)
        # The original does not have what GradScaler set here; GradScaler deletes it afterwards.
        told = {key: self.__dict__.pop(key) for key in _TOLD if key in self.__dict__}
        try:
            if "found_inf" in told and told["found_inf"].item():
                return None
            self._unscale(told.get("grad_scale"))
            return self._step_original(closure)
        finally:
            self.__dict__.update(told)

    def _step_original(self, closure: Callable[[], Any] | None) -> Any:
        return super().step(closure) if closure is not None else super().step()

    @torch.no_grad()
    def _unscale(self, grad_scale: Tensor | None) -> None:
        if grad_scale is None:
            return
        factor = grad_scale.double().reciprocal().item()
        for param in self._trained:
            if param.grad is not None:
                param.grad.mul_(factor)

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


def make_adasum_optimizer(
    optimizer: torch.optim.Optimizer,
    names: dict[Tensor, str],
    compression: Compression,
    passes: int,
    process_set: ProcessSet,
) -> WrappedOptimizer:
    """Wrap an optimizer so that its steps are combined with Adasum.

    Args:
        optimizer: any torch optimizer; shared, not copied.
        names: a name for each of its parameters.
        compression: what travels of the differences.
        passes: backward passes whose gradients add up before each ``step``.
        process_set: the ranks that take part, this one among them.
    """
    result = wrap(optimizer, _AdasumOptimizer)
    result._parameter_names = names
    result.backward_passes_per_step = passes
    result._trained = {}
    if isinstance(compression, ExchangeCompressor):
        result._exchange = compression.make_exchange(Adasum, 1.0, 1.0, process_set)
    else:
        result._exchange = PlainExchange(compression, Adasum, 1.0, 1.0, process_set)
    return result
