"""One implementation behind ``horovod.keras`` and ``horovod.tensorflow.keras``.

It serves Keras 3 on its TensorFlow, torch and JAX backends, and Keras 2; ``library`` has the
differences. ``api`` has the public functions for one Keras module. The code for a backend is in
``backend_tensorflow``, ``backend_torch`` or ``backend_jax``; only one of them is imported. This
module is the ``__module__`` of all wrapped optimizers.
"""

from horovod.core.base.later import imported_later as _imported_later

_NAMES_OF_FORKS = {
    *("allgather", "allreduce", "broadcast", "broadcast_global_variables"),
    *("create_distributed_optimizer", "load_model", "reducescatter"),
}
__getattr__ = _imported_later(__name__, dict.fromkeys(_NAMES_OF_FORKS, "horovod._keras.forks"))
