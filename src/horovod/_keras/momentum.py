"""Momentum correction: what was gathered at one learning rate, used at another.

Momentum is a sum of updates, each made with the rate of its time. In the batch where the rate
changes, the sum counts ``new / old`` times. Keras 2's legacy optimizers read their momentum in each
step, so it is multiplied for one batch. Others compile it in as a constant; multiplying the sums
themselves comes to the same and lasts.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

from horovod._keras.library import is_legacy_optimizer

__all__ = ["Correction", "correction_for"]

_warned = False


class Correction(Protocol):
    """A correction in force."""

    def end(self) -> None:
        """The batch is over."""


def correction_for(keras: Any, optimizer: Any, factor: float) -> Correction | None:
    """Begin to count gathered momentum ``factor`` times; None if nothing has to end.

    Optimizers without momentum are left alone. If there is one that cannot be reached, a warning
    says so, once.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    momentum = getattr(optimizer, "momentum", None)
    if momentum is None:
        return None
    if is_legacy_optimizer(keras, optimizer):
        return _legacy_correction(keras, optimizer, momentum, factor)
    if not momentum:
        return None
    sums = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None)
    if sums:
        for variable in sums:
            variable.assign(variable * factor)
    elif getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        _warn_once(optimizer)
    return None


class _Momentum:
    """A legacy optimizer's momentum, changed for one batch."""

    def __init__(self, keras: Any, variable: Any, factor: float) -> None:
        self._keras = keras
        self._variable = variable
        self._value = keras.backend.get_value(variable)
        keras.backend.set_value(variable, self._value * factor)

    def end(self) -> None:
        self._keras.backend.set_value(self._variable, self._value)


def _legacy_correction(
    keras: Any, optimizer: Any, momentum: Any, factor: float
) -> Correction | None:
    if not hasattr(momentum, "assign"):  # before the first step, with nothing gathered
        return None
    return _Momentum(keras, momentum, factor)


def _warn_once(optimizer: Any) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"momentum_correction has no effect on {type(optimizer).__name__}: its momentum is "
            "compiled into the training step",
            UserWarning,
            stacklevel=6,
        )
