"""Fake hosts, and checks of the process that starts the jobs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fake_hosts import FakeHosts
from launching import assert_gone


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeHosts]:
    (tmp_path / "fake").mkdir()
    hosts = FakeHosts(tmp_path / "fake")
    yield hosts
    hosts.assert_empty()


@pytest.fixture
def no_child_is_left() -> Iterator[None]:
    """All processes started by the test's processes end with them."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert_gone([p.pid for p in set(psutil.Process().children(recursive=True)) - before])


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """No child, descriptor or thread remains; environment and signal handlers are unchanged."""
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
