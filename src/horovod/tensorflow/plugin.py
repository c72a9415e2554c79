"""Opens the native plugin, and tests whether it works with this TensorFlow.

Its asynchronous kernels keep TensorFlow's callback beyond the call that gives it, which the C API
does not promise. A node that does only this shows whether this TensorFlow allows it.
In versions outside of our tests it runs in a process of its own first, since its failure may be a
crash.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf

from horovod.core.base.plugins import works
from horovod.core.port import port_address

LIBRARY = Path(__file__).parent.parent / "libhorovod_tensorflow.so"
TRIED = ((2, 15), (2, 21))  # the oldest and the newest version in our tests
_TEST_VALUE = 7
_TEST_SCRIPT = (
    "import sys, tensorflow as tf; "
    "plugin = tf.load_op_library(sys.argv[1]); "
    f"sys.exit(int(plugin.horovod_self_test({_TEST_VALUE})) != {_TEST_VALUE})"
)


def load_plugin() -> Any:
    """The plugin's operations as functions.

    Raises:
        ImportError: it is not there, cannot be opened, or does not pass its test.
    """
    if not works(LIBRARY, "tensorflow", tf.__version__, TRIED, _TEST_SCRIPT):
        raise ImportError(f"the plugin does not work with TensorFlow {tf.__version__}")
    try:
        plugin = tf.load_op_library(str(LIBRARY))
        failure = _attach()
    except (tf.errors.OpError, OSError, AttributeError) as error:
        raise ImportError(f"the plugin cannot be opened: {error}") from error
    if failure:
        raise ImportError(f"the plugin's operations were refused: {failure}")
    with tf.init_scope():
        _test(plugin)
    return plugin


def _attach() -> str:
    """Give the plugin the port to the engine; returns what went wrong when it was opened."""
    attach = ctypes.CDLL(str(LIBRARY)).horovod_tensorflow_attach
    attach.argtypes = [ctypes.c_void_p]
    attach.restype = ctypes.c_char_p
    failure: bytes = attach(port_address())
    return failure.decode(errors="replace")


def _test(plugin: Any) -> None:
    try:
        # The script has not chosen its GPUs yet.
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
            value = session.run(plugin.horovod_self_test(_TEST_VALUE))
    except tf.errors.OpError as error:
        raise ImportError(f"the plugin's test failed: {error}") from error
    if value != _TEST_VALUE:
        raise ImportError(f"the plugin's test gave {value}, expected {_TEST_VALUE}")
