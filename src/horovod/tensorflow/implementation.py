"""Which implementation of the collectives this process uses."""

from __future__ import annotations

import functools
import logging
import threading

from horovod.settings import Settings
from horovod.tensorflow.collective_ops import CollectiveOps
from horovod.tensorflow.python_ops import PythonOps

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
