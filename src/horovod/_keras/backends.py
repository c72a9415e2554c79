"""Which of the three backends an optimizer needs, imported when it is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from horovod._keras.library import backend_name

__all__ = ["backend_for"]

_MODULES = {
    "tensorflow": "horovod._keras.backend_tensorflow",
    "torch": "horovod._keras.backend_torch",
    "jax": "horovod._keras.backend_jax",
}


def backend_for(keras: Any) -> Any:
    """The module of ours for this Keras's backend.

    Raises:
        ValueError: the backend cannot train.
    """
    name = backend_name(keras)
    if name not in _MODULES:
        raise ValueError(
            f"horovod.keras works with the backends {', '.join(_MODULES)}; KERAS_BACKEND is {name}"
        )
    return import_module(_MODULES[name])
