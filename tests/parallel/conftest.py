"""Tests that every rank runs: ``horovodrun -np N python -m pytest tests/parallel``.

All ranks collect the same tests in the same order, so a test may use collectives freely. A test
that fails on one rank only would leave the others waiting; the stall shutdown time ends that.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import sets

# Ranks share the cores; threads of each rank's own would wait for each other there.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "20")
os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "40")
os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")

# Not every environment has every framework: a binding's tests need its own.
collect_ignore = [
    name for name in ("torch", "tensorflow", "jax", "keras", "mxnet") if find_spec(name) is None
]


@pytest.fixture(scope="session", autouse=True)
def world() -> Iterator[None]:
    """One world for the session; tests that end it start it again."""
    from horovod.core import world

    world.init()
    yield
    world.shutdown()


@pytest.fixture(scope="module")
def process_sets() -> Iterator[list[object]]:
    """The global process set and overlapping ones; a module that ends the world cannot use it."""
    from horovod.core import world

    world.init()
    with sets.registered(sets.overlapping(world.size())) as all_sets:
        yield all_sets
