"""Fixtures for tests of the rendezvous."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

import pytest

from horovod.rendezvous import allgather
from horovod.rendezvous.host import peer
from horovod.rendezvous.store import client


def _open_descriptors() -> set[tuple[str, str]]:
    """Number and target of each, without the one that lists them."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


@pytest.fixture
def nothing_leaks() -> Iterator[None]:
    """A test must close all its descriptors, without the garbage collector."""
    gc.collect()  # garbage of earlier tests must not be closed meanwhile
    before = _open_descriptors()
    yield
    assert _open_descriptors() - before == set()


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Other threads and processes may be slow to answer."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (allgather, peer, client):
            patch.setattr(module, "_GRACE_S", 60.0)
        yield
