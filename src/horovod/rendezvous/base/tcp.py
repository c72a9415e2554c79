"""Sockets between hosts: how they are made, and how soon they notice that nobody is there."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from typing import Any

from horovod.rendezvous.base.interfaces import Address, Route

__all__ = ["address_text", "dialing_socket", "listening_socket", "shorten_pauses", "tune"]

_BACKLOG = 1024
_TCP_RTO_MAX_MS = 44  # Linux 6.15; Python has no name for it
_LONGEST_PAUSE_MS = 2000


def address_text(address: Sequence[Any]) -> str:
    """A socket address for messages: ``10.0.0.5:80``, ``[::1]:80``."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shorten_pauses(made: socket.socket) -> None:
    """Have lost packets sent again after two seconds at the latest, where the system can do that.

    Else TCP waits twice as long each time, up to two minutes, and on a link that loses many packets
    it is mostly waiting. Connections that a socket accepts are as the socket.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        made.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_PAUSE_MS)


def listening_socket(address: Address) -> socket.socket:
    """Listens at ``address`` alone, on a port that the system chooses; non-blocking.

    Raises:
        OSError: the address cannot be used, or not yet.
    """
    route = Route(address.host, 0, address.scope)
    listener = socket.socket(route.family, socket.SOCK_STREAM)
    shorten_pauses(listener)
    try:
        if route.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(route.target)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def dialing_socket(route: Route) -> socket.socket:
    """A non-blocking socket to connect with."""
    dialing = socket.socket(route.family, socket.SOCK_STREAM)
    shorten_pauses(dialing)
    dialing.setblocking(False)
    return dialing


def tune(connected: socket.socket, timeout_s: float) -> None:
    """Send at once; fail within ``timeout_s`` when the other end does not acknowledge.

    Bytes under way count from when they were sent (TCP_USER_TIMEOUT), a silent connection is
    probed (keepalive, whose last word TCP_USER_TIMEOUT has as well, see tcp(7)). Below about 6 s
    the system's whole seconds make it up to two seconds later.
    """
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    interval_s = max(1, int(timeout_s / 6))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2 * interval_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    # The probe after this limit reports it: one interval before the whole time has passed.
    limit_ms = int(1000 * max(timeout_s - interval_s, timeout_s / 2))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
