"""Blocking sockets that tests use without a protocol."""

from __future__ import annotations

import socket


def read_exactly(connected: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connected.recv(count - len(data))
        assert more
        data += more
    return data


def is_closed_by_peer(connected: socket.socket) -> bool:
    """Read until the end of the stream, which must come within 30 s."""
    connected.settimeout(30)
    try:
        while connected.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True
