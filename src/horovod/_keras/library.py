"""Which Keras this is: generation, backend, and what the generations call differently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = [
    "backend_name",
    "base_optimizers",
    "inner_optimizers",
    "is_keras3",
    "is_legacy_optimizer",
    "variable_key",
]


def is_keras3(keras: Any) -> bool:
    """Whether ``keras`` is Keras 3, which brings its own operations for all backends."""
    return hasattr(keras, "ops")


def backend_name(keras: Any) -> str:
    """``"tensorflow"``, ``"torch"`` or ``"jax"``; others of Keras 3 cannot train."""
    return str(keras.backend.backend()) if is_keras3(keras) else "tensorflow"


def is_legacy_optimizer(keras: Any, optimizer: Any) -> bool:
    """Whether this is one of Keras 2's older kind of optimizers."""
    if is_keras3(keras):
        return False
    return isinstance(optimizer, keras.optimizers.legacy.Optimizer)


def base_optimizers(keras: Any) -> tuple[type, ...]:
    """The classes that every optimizer of this Keras derives from."""
    found = [keras.optimizers.Optimizer]
    if not is_keras3(keras):
        found.append(keras.optimizers.legacy.Optimizer)
        scaler = getattr(keras.mixed_precision, "LossScaleOptimizer", None)
        if scaler is not None:  # an optimizer by behaviour, not by class
            found.append(scaler)
    return tuple(found)


def inner_optimizers(optimizer: Any) -> Iterator[Any]:
    """The optimizer, and those it holds: a loss scaling optimizer has one inside."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def variable_key(variable: Any) -> int:
    """Tells variables apart; a Keras 3 variable and the TensorFlow variable in it are the same one.

    Scripts may hold either, and a Keras 3 variable has no ``ref``.
    """
    inner = getattr(variable, "_value", None)
    return id(inner if hasattr(inner, "assign") else variable)
