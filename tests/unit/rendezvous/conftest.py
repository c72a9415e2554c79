"""Fixtures for tests of the rendezvous."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def nothing_leaks() -> Iterator[None]:
    """A test must close all its descriptors, without the garbage collector."""
    gc.collect()  # garbage of earlier tests must not be closed meanwhile
    before = _open_descriptors()
    yield
    assert _open_descriptors() == before
