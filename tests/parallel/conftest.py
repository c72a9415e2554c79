"""Tests that every rank runs: ``horovodrun -np N python -m pytest tests/parallel``.

All ranks collect the same tests in the same order, so a test may use collectives freely. A test
that fails on one rank only would leave the others waiting; the stall shutdown time ends that.
"""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "20")
os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "40")


@pytest.fixture(scope="session", autouse=True)
def world() -> Iterator[None]:
    """One world for the session; tests that end it start it again."""
    from horovod import world

    world.init()
    yield
    world.shutdown()
