"""What every test of a job asks of the process that started it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest
from launching import assert_gone


@pytest.fixture
def no_child_is_left() -> Iterator[None]:
    """Whatever the test's processes have started ends with them."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert_gone([p.pid for p in set(psutil.Process().children(recursive=True)) - before])


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """No child, descriptor or thread remains; environment and signal handlers are as before."""
    children = set(psutil.Process().children(recursive=True))
    descriptors, environment = os.listdir("/proc/self/fd"), own_environment()
    threads = set(threading.enumerate())
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    yield
    assert set(psutil.Process().children(recursive=True)) == children
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)
    assert set(threading.enumerate()) == threads
    assert own_environment() == environment
    assert handlers == [
        signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    ]


def own_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in os.environ if name != "PYTEST_CURRENT_TEST"}
