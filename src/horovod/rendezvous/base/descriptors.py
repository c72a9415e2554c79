"""How many descriptors this process and its children may have open."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

# Enough for thousands of ranks. A table as large as some systems allow would cost memory.
_MOST_DESCRIPTORS = 65_536
_LIMIT = resource.RLIMIT_NOFILE


def raise_limit() -> int:
    """Raise the soft limit of descriptors to the hard one, 65,536 at most; return the old limit.

    Children inherit the new limit. ``limited_to`` gives a child the old one.
    """
    soft, hard = resource.getrlimit(_LIMIT)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(_LIMIT, (wanted, hard))
    return soft


@contextlib.contextmanager
def raised_limit() -> Iterator[int]:
    """``raise_limit`` for the block; yields the old limit."""
    before = raise_limit()
    try:
        yield before
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(_LIMIT, (before, resource.getrlimit(_LIMIT)[1]))


@contextlib.contextmanager
def limited_to(limit: int | None) -> Iterator[None]:
    """A child that is started in the block inherits this soft limit; None: the present one.

    Programs with ``select`` rely on a limit of 1024 (select(2)). Open descriptors above the limit
    stay usable. Another thread may fail to open a descriptor during the block.
    """
    before = resource.getrlimit(_LIMIT)
    if limit is not None:
        resource.setrlimit(_LIMIT, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(_LIMIT, before)


def limit_child(pid: int, limit: int) -> None:
    """Set the soft limit of a child that has just been started. Linux only."""
    with contextlib.suppress(OSError, AttributeError):  # it has ended, or has changed its user
        resource.prlimit(pid, _LIMIT, (limit, resource.getrlimit(_LIMIT)[1]))


def soft_limit() -> int:
    """How many descriptors this process may have open."""
    soft, _ = resource.getrlimit(_LIMIT)
    return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


class Reserve:
    """Descriptors that a process keeps for its shutdown, when no others may be left."""

    def __init__(self, count: int = 16) -> None:
        self._held: list[int] = []
        with contextlib.suppress(OSError):  # as many as there are
            for _ in range(count):
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> None:
        """Close them; may be repeated."""
        while self._held:
            os.close(self._held.pop())
