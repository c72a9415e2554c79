"""One implementation behind ``horovod.keras`` and ``horovod.tensorflow.keras``.

It serves Keras 3 on its TensorFlow, torch and JAX backends, and Keras 2; ``library`` has the
differences. ``api`` has the public functions for one Keras module. The code for a backend is in
``backend_tensorflow``, ``backend_torch`` or ``backend_jax``; only one of them is imported. The
classes of wrapped optimizers name this module as theirs.
"""

from importlib import import_module
from typing import Any

_FORKS = "horovod._keras.forks"
_NAMES_OF_FORKS = {
    *("allgather", "allreduce", "broadcast", "broadcast_global_variables"),
    *("create_distributed_optimizer", "load_model", "reducescatter"),
}


def __getattr__(name: str) -> Any:
    if name in _NAMES_OF_FORKS:
        return getattr(import_module(_FORKS), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
