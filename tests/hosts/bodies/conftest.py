"""Bodies that every rank runs, like those of ``tests/parallel``, for worlds of several hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import horovod.numpy as hvd

os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "20")
os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "40")
os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")


@pytest.fixture(scope="session", autouse=True)
def world() -> Iterator[None]:
    """One world for the session."""
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(scope="session")
def hosts(world: None) -> list[list[int]]:
    """The ranks of each host, as the test that started them has placed them."""
    counts = [int(text) for text in os.environ["RANKS_PER_HOST"].split(",")]
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    return [list(range(end - count, end)) for count, end in zip(counts, ends, strict=True)]
