"""Limits the descriptors that unauthenticated peers of a listening port can use.

Any process that reaches a port can make this process accept connections. Unauthenticated peers get
a quarter of the descriptors at most. The last descriptors are for this process alone.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

from horovod.rendezvous.base.descriptors import soft_limit

_MOST_UNAUTHENTICATED = 4096
_LEAST_UNAUTHENTICATED = 8
_OWN = 64  # descriptors that no peer gets; an eighth where there are few
_ACCEPTS_AT_ONCE = 64
_LOST_BEFORE_ACCEPT = {errno.ECONNABORTED, errno.EPROTO, errno.EINTR}

Peer = TypeVar("Peer", bound=Hashable)


def most_unauthenticated() -> int:
    """How many unauthenticated connections may be open: a quarter of the soft limit."""
    return max(_LEAST_UNAUTHENTICATED, min(soft_limit() // 4, _MOST_UNAUTHENTICATED))


def accept_some(listener: socket.socket, most: int) -> Iterator[tuple[socket.socket, Any]]:
    """Up to ``most`` connections that wait at a non-blocking ``listener``; they do not block.

    Raises:
        OSError: EMFILE or ENFILE: only the descriptors of this process itself are left. The
            connection is dropped, or waits in the backlog.
    """
    limit = soft_limit()
    last = limit - min(_OWN, limit // 8)
    for _ in range(max(1, min(most, _ACCEPTS_AT_ONCE))):
        try:
            accepted, address = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in _LOST_BEFORE_ACCEPT:
                continue
            raise
        if accepted.fileno() >= last:  # the system gives the lowest free number
            accepted.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        accepted.setblocking(False)
        yield accepted, address


class UnauthenticatedPeers(Generic[Peer]):
    """Connections that have proved nothing, by the address that they come from.

    There are at most ``most``, by default a quarter of the descriptors.

    When there are too many, the oldest one of the address with most of them is dropped. So a flood
    from one address costs a rank at another address nothing. A rank at the same address has as much
    time as the flood needs to fill its part again; if it is dropped, it dials again. Pure.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most or most_unauthenticated()
        self._address_of: dict[Peer, str] = {}
        self._at: dict[str, dict[Peer, None]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._address_of)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._address_of

    @property
    def is_full(self) -> bool:
        """Whether a peer must be dropped before the next one is added."""
        return len(self) >= self.most

    def add(self, peer: Peer, address: str) -> None:
        """Count a new connection."""
        self._address_of[peer] = address
        self._at.setdefault(address, {})[peer] = None

    def remove(self, peer: Peer) -> str | None:
        """Stop counting a connection that ended or proved itself; its address, None if unknown."""
        address = self._address_of.pop(peer, None)
        if address is not None:
            del self._at[address][peer]
            if not self._at[address]:
                del self._at[address]
        return address

    def first_to_go(self) -> Peer | None:
        """The peer to drop next; None if there is none."""
        crowd = max(self._at.values(), key=len, default=None)
        return None if crowd is None else next(iter(crowd))
