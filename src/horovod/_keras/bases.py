"""Our classes for one Keras: each gets the base that this Keras wants, and knows its Keras."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["keras_of", "with_backend", "with_base"]


def with_base(ours: type, base: type, keras: Any, module: str) -> Any:
    """A class of the same name that is also a ``base``; ``module`` is where it can be imported."""
    namespace = {"__module__": module, "__doc__": ours.__doc__, "_keras": keras}
    bases = (ours,) if issubclass(ours, base) else (ours, base)
    return type(ours.__name__, bases, namespace)


def with_backend(ours: type) -> Any:
    """A class ``<name>Impl`` that is given a ``keras.backend`` before all other arguments.

    For classes of others that derive from it and from a base of their Keras.
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
