"""A part of a model that ranks with local steps agree on at a time: sent, awaited and merged.

The *agreed* parameters are the same bits on every rank. They are kept in float32 at least, beside
the momentum of the outer optimizer. The outer gradient is what the rank's own steps took away from
them: agreed minus own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from horovod.core.local_steps import LocalSteps, mixed
from horovod.errors import HorovodInternalError
from horovod.torch.gradient_exchange import Pending, PlainExchange


class Fragment:
    """Some parameters of a model, their agreed values and the outer gradient under way.

    Args:
        name: of the operation that sends it.
        params: dense floating parameters.
        rules: of the outer step and of merging.

    Attributes:
        agreed: values by parameter; none before ``begin``.
        momentum: of the outer optimizer, by parameter; none if it has none.
        gradients: outer gradients that are under way, or there and not merged yet.
        agreed_at: the step after which this rank's parameters were the agreed ones.
    """

    def __init__(self, name: str, params: Sequence[Tensor], rules: LocalSteps) -> None:
        self.params = list(params)
        self._name = name
        self._rules = rules
        self.forget()

    @property
    def has_begun(self) -> bool:
        """Whether there are agreed parameters."""
        return bool(self.agreed)

    def forget(self) -> None:
        """Start anew: the agreed parameters are those at the next ``begin``."""
        self._pending: Pending | None = None
        self.agreed: list[Tensor] = []
        self.momentum: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.agreed_at = 0

    @torch.no_grad()
    def begin(self) -> None:
        """Take the parameters as they are for the agreed ones: all, or those that are new."""
        for param in self.params[len(self.agreed) :]:
            self.agreed.append(param.detach().to(_outer_dtype(param), copy=True))
            if self._rules.outer_momentum:
                self.momentum.append(torch.zeros_like(self.agreed[-1]))

    @torch.no_grad()
    def send(self, exchange: PlainExchange) -> None:
        """Begin to average the outer gradient over ranks."""
        pairs = zip(self.agreed, self.params, strict=True)
        gradients = [agreed - param for agreed, param in pairs]
        self._pending = exchange.start_group(self._name, gradients)
        self.gradients = gradients

    def wait(self) -> None:
        """Wait for the average, if it is under way.

        Raises:
            HorovodInternalError: the reduction failed; nothing is merged.
        """
        if self._pending is None:
            return
        try:
            self._pending.finish()
        except HorovodInternalError:
            self._pending, self.gradients = None, []
            raise
        self._pending = None

    def drop(self) -> None:
        """Give up what is under way; what the rank has changed is sent the next time."""
        if self._pending is not None:
            with contextlib.suppress(HorovodInternalError):
                self.wait()
            self.gradients = []

    @torch.no_grad()
    def merge(self, weight: float, step: int) -> None:
        """Wait, make the outer step, and move the parameters to the agreed ones.

        Args:
            weight: how far they move; 1 is all the way.
            step: the number of the rank's step.
        """
        self.wait()
        # Parameters that came after ``send`` have no gradient yet.
        for index, gradient in enumerate(self.gradients):
            param, agreed = self.params[index], self.agreed[index]
            momentum = self.momentum[index] if self.momentum else None
            agreed, momentum = self._rules.step_outer(agreed, momentum, gradient)
            self.agreed[index] = agreed
            if momentum is not None:
                self.momentum[index] = momentum
            param.copy_(mixed(agreed, param.to(agreed.dtype), weight))
        if weight == 1 and len(self.gradients) == len(self.params):
            self.agreed_at = step
        self.gradients = []


def _outer_dtype(param: Tensor) -> torch.dtype:
    return torch.promote_types(param.dtype, torch.float32)
