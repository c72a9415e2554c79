"""How many descriptors this process may have open, and what of it is for whom.

Whoever reaches a port can make its process accept connections, so what has proved nothing gets a
part of the descriptors only, and the last ones are left to the process itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from collections.abc import Iterator
from typing import Any

__all__ = [
    "Reserve",
    "accept_some",
    "limit_child",
    "limited_to",
    "most_strangers",
    "raise_limit",
    "raised_limit",
]

# Enough for thousands of ranks; a table of descriptors as large as some systems allow costs memory.
_MOST_DESCRIPTORS = 65_536
_MOST_STRANGERS = 4096
_LEAST_STRANGERS = 8
_OWN = 64  # that no stranger gets, or an eighth of few
_ACCEPTS_AT_ONCE = 64
_LIMIT = resource.RLIMIT_NOFILE
_LOST_ON_THE_WAY = {errno.ECONNABORTED, errno.EPROTO, errno.EINTR}


def raise_limit() -> int:
    """Raise the soft limit of descriptors to the hard one, 65,536 at most; what it was before.

    Children inherit it: ``limited_to`` gives one what a user expects.
    """
    soft, hard = resource.getrlimit(_LIMIT)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # not allowed here: it stays as it is
            resource.setrlimit(_LIMIT, (wanted, hard))
    return soft


@contextlib.contextmanager
def raised_limit() -> Iterator[int]:
    """``raise_limit`` for as long as the block; yields what it was before."""
    before = raise_limit()
    try:
        yield before
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(_LIMIT, (before, resource.getrlimit(_LIMIT)[1]))


@contextlib.contextmanager
def limited_to(limit: int | None) -> Iterator[None]:
    """Have a child that is started in the block inherit this soft limit; None: the present one.

    Programs with ``select`` rely on one of 1024 (select(2)). What is open above it stays usable;
    what another thread opens meanwhile may fail.
    """
    before = resource.getrlimit(_LIMIT)
    if limit is not None:
        resource.setrlimit(_LIMIT, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(_LIMIT, before)


def limit_child(pid: int, limit: int) -> None:
    """The same for a child that has just been started. Linux only."""
    with contextlib.suppress(OSError, AttributeError):  # it has ended, or has changed its user
        resource.prlimit(pid, _LIMIT, (limit, resource.getrlimit(_LIMIT)[1]))


def most_strangers() -> int:
    """How many connections that have proved nothing may be open: a quarter of the soft limit."""
    return max(_LEAST_STRANGERS, min(_soft_limit() // 4, _MOST_STRANGERS))


def accept_some(listener: socket.socket, most: int) -> Iterator[tuple[socket.socket, Any]]:
    """Connections that wait at a non-blocking ``listener``, ``most`` of them; they do not block.

    Raises:
        OSError: EMFILE or ENFILE, no descriptor is left but for this process itself. The one that
            has come is dropped or waits.
    """
    limit = _soft_limit()
    last = limit - min(_OWN, limit // 8)
    for _ in range(max(1, min(most, _ACCEPTS_AT_ONCE))):
        try:
            accepted, address = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in _LOST_ON_THE_WAY:
                continue
            raise
        if accepted.fileno() >= last:  # the system gives the lowest number that is free
            accepted.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        accepted.setblocking(False)
        yield accepted, address


def _soft_limit() -> int:
    soft, _ = resource.getrlimit(_LIMIT)
    return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


class Reserve:
    """Descriptors that are kept for a process's way out, when there may be no others."""

    def __init__(self, count: int = 16) -> None:
        self._held: list[int] = []
        with contextlib.suppress(OSError):  # as many as there are
            for _ in range(count):
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> None:
        """Let them go; may be repeated."""
        while self._held:
            os.close(self._held.pop())
