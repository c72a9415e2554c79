"""Shared by the unit tests of horovod.mxnet."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = ["test_*.py"] if find_spec("mxnet") is None else []

if find_spec("mxnet") is not None:
    with warnings.catch_warnings():  # it is older than the NumPy that it works with
        warnings.simplefilter("ignore")
        import mxnet  # noqa: F401


@pytest.fixture
def world() -> Iterator[None]:
    """A world of this process alone."""
    import horovod.mxnet as hvd

    hvd.init()
    yield
    hvd.shutdown()
