"""Sockets between hosts: how they are made, and how soon they notice a lost peer."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from typing import Any

from horovod.core.base.on_error import on_error
from horovod.rendezvous.base.interfaces import Route

_BACKLOG = 1024  # a longer one would only make the wait longer
_TCP_RTO_MAX_MS = 44  # Linux 6.15; Python has no name for it
_LONGEST_PAUSE_MS = 2000
_TCP_CONGESTION = 13  # socket.TCP_CONGESTION is missing where Python was built for old systems
_MIN_RTT = slice(148, 152)  # tcpi_min_rtt of Linux' struct tcp_info, in microseconds
_LONG_RTT_US = 10_000
_FOR_LONG_LINKS = b"bbr"


def address_text(address: Sequence[Any]) -> str:
    """A socket address for messages: ``10.0.0.5:80``, ``[::1]:80``."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shorten_pauses(made: socket.socket) -> None:
    """Have lost packets sent again after two seconds at the latest, where the system can do that.

    Otherwise TCP doubles the pause each time, up to two minutes, and a link that loses many packets
    mostly waits. Accepted connections inherit the setting of their listener.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        made.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_PAUSE_MS)


def listening_socket(
    family: socket.AddressFamily, target: Any, *, reuses_address: bool = False
) -> socket.socket:
    """A non-blocking socket that listens at ``target`` only; port 0: the system chooses one.

    Raises:
        OSError: the address cannot be used, or cannot be used yet.
    """
    listener = socket.socket(family, socket.SOCK_STREAM)
    with on_error(listener.close):
        shorten_pauses(listener)
        if reuses_address:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(target)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    return listener


def listen_at(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """A listening socket for each pair of host and port.

    Raises:
        OSError: an address is not this machine's or is taken; then none is open.
    """
    listeners: list[socket.socket] = []
    with contextlib.ExitStack() as opened:
        for host, port in addresses:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, _, _, _, target = found[0]
            listener = listening_socket(family, target, reuses_address=True)
            listeners.append(opened.enter_context(listener))
        opened.pop_all()  # they stay open
    return listeners


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Where it listens."""
    host, port = listener.getsockname()[:2]
    return host, port


def dialing_socket(route: Route) -> socket.socket:
    """A non-blocking socket to connect with."""
    dialing = socket.socket(route.family, socket.SOCK_STREAM)
    shorten_pauses(dialing)
    dialing.setblocking(False)
    return dialing


def suit_distance(connected: socket.socket) -> None:
    """Have a connection with long round trips go on at its rate after single losses.

    The usual congestion controls take each loss for a full link. At 100 ms and one loss in a
    thousand packets they reach 5 Mbit/s. bbr measures the rate instead. The administrator decides
    whether it may be used (``net.ipv4.tcp_allowed_congestion_control``).
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.stop)
        if int.from_bytes(info[_MIN_RTT], sys.byteorder) >= _LONG_RTT_US:
            connected.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, _FOR_LONG_LINKS)


def tune(connected: socket.socket, timeout_s: float) -> None:
    """Send at once; suit the distance; fail within ``timeout_s`` when the other end is silent.

    TCP_USER_TIMEOUT limits the age of unacknowledged bytes. Keepalive probes a silent connection,
    and TCP_USER_TIMEOUT decides when its probes have failed (tcp(7)). Below about 6 s the failure
    may come up to two seconds later, since the system counts keepalive in whole seconds.
    """
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    suit_distance(connected)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    interval_s = max(1, int(timeout_s / 6))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2 * interval_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    # The first probe after this limit reports the failure, so the limit is one interval shorter.
    limit_ms = int(1000 * max(timeout_s - interval_s, timeout_s / 2))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
