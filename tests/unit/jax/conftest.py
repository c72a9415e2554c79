"""Shared by the unit tests of horovod.jax: a world of one, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
collect_ignore_glob = ["test_*.py"] if find_spec("jax") is None else []


@pytest.fixture
def world() -> Iterator[None]:
    """A world of this process alone."""
    import horovod.jax as hvd

    hvd.init()
    yield
    hvd.shutdown()
