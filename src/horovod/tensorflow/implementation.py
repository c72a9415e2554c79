"""Which implementation of the collectives this process uses."""

from __future__ import annotations

import functools
import logging
import threading

import tensorflow as tf

from horovod.core.world import is_initialized, rank
from horovod.settings import Settings
from horovod.tensorflow.gradients import CollectiveOps
from horovod.tensorflow.python_ops import PythonOps

_choice_lock = threading.Lock()  # a cached function may run once in each of several threads


def implementation() -> CollectiveOps:
    """The implementation that this process uses, chosen when first asked for.

    The native one, unless ``HOROVOD_TENSORFLOW_NATIVE_OPS=0``, or the plugin does not work with
    this TensorFlow, which is said once. In a function that XLA compiles, the one for XLA.

    Raises:
        tf.errors.InvalidArgumentError: XLA compiles the function, which ``HOROVOD_ENABLE_XLA_OPS``
            does not allow, or which does not work with this TensorFlow.
    """
    is_compiled = is_traced_for_xla()
    with _choice_lock:
        return _for_xla() if is_compiled else _chosen()


@functools.cache
def _chosen() -> CollectiveOps:
    _say_how_gpus_are_served()
    if not Settings.from_env().tensorflow_native_ops:
        return PythonOps()
    # Imported here, so that programs without the plugin never import the code that opens it.
    from horovod.tensorflow.native_ops import NativeOps

    try:
        return NativeOps()
    except ImportError as error:
        logging.getLogger("horovod").warning(
            "Horovod: TensorFlow's collectives run as Python operations, which is slower: %s", error
        )
        return PythonOps()


def _for_xla() -> CollectiveOps:
    if not Settings.from_env().enable_xla_ops:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "XLA compiles this function (jit_compile=True), and Horovod's operations are made for "
            "it with HOROVOD_ENABLE_XLA_OPS=1 only; set it on all ranks, or reduce outside of the "
            "function",
        )
    return _xla_ops()


@functools.cache
def _xla_ops() -> CollectiveOps:
    from horovod.tensorflow.xla_ops import XlaOps, open_for_xla

    try:
        open_for_xla()
        return XlaOps()
    except ImportError as error:
        text = f"Horovod's operations cannot be compiled by XLA: {error}"
        raise tf.errors.InvalidArgumentError(None, None, text) from error


def _say_how_gpus_are_served() -> None:
    """TensorFlow's C interface shows no streams of its own GPUs, only of plugged-in devices."""
    is_first = not is_initialized() or rank() == 0
    if is_first and tf.config.list_physical_devices("GPU"):
        logging.getLogger("horovod").warning(
            "Horovod: TensorFlow's collectives run on the CPU; it copies tensors on GPUs to host "
            "memory and back. In functions that XLA compiles (jit_compile=True) they run on the "
            "GPU, with HOROVOD_ENABLE_XLA_OPS=1"
        )


def is_traced_for_xla() -> bool:
    """Whether a node made now becomes part of a function that XLA compiles whole."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False
