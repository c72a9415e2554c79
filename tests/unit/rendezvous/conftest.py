"""What every test of the mesh may ask for."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def nothing_leaks() -> Iterator[None]:
    """Whatever a test opens is closed at its end, without help of the garbage collector."""
    gc.collect()  # what earlier tests left must not be closed meanwhile
    before = _open_descriptors()
    yield
    assert _open_descriptors() == before
