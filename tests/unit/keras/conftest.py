"""Keras with the configured backend, or Keras 2."""

import importlib.util
import os
import warnings

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

if importlib.util.find_spec("keras") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        # The imports of frameworks cause deprecation warnings of other libraries.
        warnings.simplefilter("ignore")
        import horovod.keras  # noqa: F401


@pytest.fixture
def world():
    """A world of one."""
    from horovod.core import world

    world.init()
    yield
    world.shutdown()
