"""Lets programs that XLA compiles call the plugin, if that works here.

The plugin relies on more than TensorFlow promises (see bindings/tensorflow/xla_plugin.cc), so in
versions outside of our tests it is tried in a process of its own first.
"""

from __future__ import annotations

import ctypes
import functools

import tensorflow as tf

from horovod.core.base.plugins import works
from horovod.tensorflow.plugin import LIBRARY, TRIED, load_plugin

_REASON_SIZE = 1000
_TEST_SCRIPT = """
import ctypes, sys, tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_custom_call_v2
tf.load_op_library(sys.argv[1])
reason = ctypes.create_string_buffer(1000)
register = ctypes.CDLL(sys.argv[1]).horovod_tensorflow_register_xla
register.restype = ctypes.c_bool
assert register(reason, ctypes.c_size_t(1000)), reason.value

def call(value, text):
    return xla_custom_call_v2([value], "horovod_self_test", text, True, [tf.int32], [[]])[0]

assert int(tf.function(lambda v: call(v, ""), jit_compile=True)(tf.constant(7))) == 7
try:
    tf.function(lambda v: call(v, "wanted"), jit_compile=True)(tf.constant(7))
except tf.errors.InternalError as error:
    assert "wanted" in str(error)
else:
    sys.exit("the error was lost")
"""


@functools.cache
def open_for_xla() -> None:
    """Make the plugin's calls known to TensorFlow's XLA.

    Raises:
        ImportError: the plugin does not work with this TensorFlow, or not with its XLA.
    """
    load_plugin()
    if not works(LIBRARY, "tensorflow-xla", tf.__version__, TRIED, _TEST_SCRIPT):
        raise ImportError(f"the plugin does not work with XLA of TensorFlow {tf.__version__}")
    register = ctypes.CDLL(str(LIBRARY)).horovod_tensorflow_register_xla
    register.argtypes, register.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_bool
    reason = ctypes.create_string_buffer(_REASON_SIZE)
    if not register(reason, _REASON_SIZE):
        raise ImportError(f"XLA of TensorFlow {tf.__version__}: {reason.value.decode()}")
