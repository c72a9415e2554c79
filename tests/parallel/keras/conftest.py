"""Bodies for every Keras and backend; ``tests/test_parallel_keras.py`` runs them.

A process can have one backend only; ``KERAS_BACKEND`` selects it.
"""

from __future__ import annotations

import os
import warnings

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

if "KERAS_BACKEND" not in os.environ:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        # The imports of frameworks cause deprecation warnings of other libraries.
        warnings.simplefilter("ignore")
        import keras

        import horovod.keras  # noqa: F401

    # The ranks share the machine's cores: thread pools would fight for them.
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
    elif os.environ["KERAS_BACKEND"] == "torch":
        import torch

        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_seed():
    """Start all ranks with the same state."""
    keras.utils.set_random_seed(7)


# Deprecation warnings of Keras, TensorFlow and torch, not of Horovod.
_THIRD_PARTY = [
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",
    "ignore:non-integer arguments to randrange:DeprecationWarning",
    "ignore::DeprecationWarning:keras.*",
    "ignore::DeprecationWarning:tensorflow.*",
    "ignore::DeprecationWarning:torch.*",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "keras":
            for warning in _THIRD_PARTY:
                item.add_marker(pytest.mark.filterwarnings(warning))
