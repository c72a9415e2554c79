"""What depends on the Keras in use: its generation, its backend, and our classes for it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

_BACKENDS = ("tensorflow", "torch", "jax")


def is_keras3(keras: Any) -> bool:
    """Whether ``keras`` is Keras 3, which brings its own operations for all backends."""
    return hasattr(keras, "ops")


def backend_name(keras: Any) -> str:
    """``"tensorflow"``, ``"torch"`` or ``"jax"``; the other backends of Keras 3 cannot train."""
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
    """The optimizer, then those inside it: a loss scaling optimizer wraps another."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def variable_key(variable: Any) -> int:
    """An identity of a variable; a Keras 3 variable and the TensorFlow variable in it share one.

    Scripts may hold either, and a Keras 3 variable has no ``ref``.
    """
    inner = getattr(variable, "_value", None)
    return id(inner if hasattr(inner, "assign") else variable)


def backend_for(keras: Any) -> Any:
    """Our module for this Keras's backend, imported when it is first needed.

    Raises:
        ValueError: the backend cannot train.
    """
    name = backend_name(keras)
    if name not in _BACKENDS:
        raise ValueError(
            f"horovod.keras works with the backends {', '.join(_BACKENDS)}; KERAS_BACKEND is {name}"
        )
    return import_module(f"horovod._keras.backend_{name}")


def with_base(ours: type, base: type, keras: Any, module: str) -> Any:
    """A class of the same name that is also a ``base``; ``module`` is its import path."""
    namespace = {"__module__": module, "__doc__": ours.__doc__, "_keras": keras}
    bases = (ours,) if issubclass(ours, base) else (ours, base)
    return type(ours.__name__, bases, namespace)


def with_backend(ours: type) -> Any:
    """A class ``<name>Impl`` whose first argument is a ``keras.backend`` module.

    Forks of the original's Keras modules derive from it and from a base of their Keras.
    """

    def __init__(self: Any, backend: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        self._keras = keras_of(backend)
        super(made, self).__init__(*args, **kwargs)

    name = f"{ours.__name__}Impl"
    namespace = {"__module__": ours.__module__, "__doc__": ours.__doc__, "__init__": __init__}
    made: Any = type(name, (ours,), namespace)
    return made


def keras_of(backend: Any) -> Any:
    """The Keras module that has this ``backend`` module."""
    return import_module(backend.__name__.rpartition(".")[0])
