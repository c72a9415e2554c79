"""Keras: one implementation behind ``horovod.keras`` and ``horovod.tensorflow.keras``.

It serves Keras 3 on its TensorFlow, torch and JAX backends, and Keras 2 (``library.py`` says how
they differ). The fronts hand over the Keras module they stand for; whatever depends on a backend is
in ``backend_tensorflow``, ``backend_torch`` or ``backend_jax``, of which only one is imported.
Classes of wrapped optimizers say that they come from this module.
"""

from importlib import import_module
from typing import Any

_OF_FORKS = frozenset(
    {
        "allgather",
        "allreduce",
        "broadcast",
        "broadcast_global_variables",
        "create_distributed_optimizer",
        "load_model",
        "reducescatter",
    }
)


def __getattr__(name: str) -> Any:
    if name in _OF_FORKS:
        return getattr(import_module("horovod._keras.forks"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
