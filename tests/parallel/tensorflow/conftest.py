"""Shared by the parallel TensorFlow tests: few threads, and every body in three modes."""

from __future__ import annotations

import os
import warnings

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

try:
    with warnings.catch_warnings():
        # Importing TensorFlow runs into deprecations of the libraries below it.
        warnings.simplefilter("ignore")
        import tensorflow as tf
except ModuleNotFoundError:
    pass  # the test modules skip themselves
else:
    # The ranks share the machine's cores: TensorFlow's thread pools would fight for them.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)


@pytest.fixture(params=["eager", "function", "session"])
def mode(request):
    """Runs a body on arrays; see ``modes``."""
    import modes

    return modes.MODES[request.param]
