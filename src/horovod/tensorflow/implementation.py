"""Which implementation of the collectives this process uses."""

from __future__ import annotations

import functools
import logging
import threading

import tensorflow as tf

from horovod.settings import Settings
from horovod.tensorflow.collective_ops import CollectiveOps
from horovod.tensorflow.python_ops import PythonOps
from horovod.world import is_initialized, rank

__all__ = ["implementation"]


_choice_lock = threading.Lock()  # a cached function may run once in each of several threads


def implementation() -> CollectiveOps:
    """The implementation that this process uses, chosen when first asked for.

    The native one, unless ``HOROVOD_TENSORFLOW_NATIVE_OPS=0``, or the plugin does not work with
    this TensorFlow, which is said once.
    """
    with _choice_lock:
        return _chosen()


@functools.cache
def _chosen() -> CollectiveOps:
    _say_how_gpus_are_served()
    if not Settings.from_env().tensorflow_native_ops:
        return PythonOps()
    # Here, so that who does without the plugin never meets what opens it.
    from horovod.tensorflow.native_ops import NativeOps

    try:
        return NativeOps()
    except ImportError as error:
        logging.getLogger("horovod").warning(
            "Horovod: TensorFlow's collectives run as Python operations, which is slower: %s", error
        )
        return PythonOps()


def _say_how_gpus_are_served() -> None:
    """TensorFlow's C interface shows no streams of its own GPUs, only of plugged-in devices."""
    is_first = not is_initialized() or rank() == 0
    if is_first and tf.config.list_physical_devices("GPU"):
        logging.getLogger("horovod").warning(
            "Horovod: TensorFlow's collectives run on the CPU; it copies tensors on GPUs to host "
            "memory and back"
        )
