"""Which names mean this machine. The only part of the launcher that looks names up."""

from __future__ import annotations

import os
import socket

__all__ = ["is_this_machine"]


def is_this_machine(hostname: str) -> bool:
    """Whether ``hostname`` is this machine; may ask DNS unless the name says it already."""
    name = hostname.lower()
    own = os.uname().nodename.lower()
    if name in ("localhost", own, own.partition(".")[0]) or name.startswith("127."):
        return True
    try:
        found = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_own_address(family, address) for family, _, _, _, address in found)


def _is_own_address(family: int, address: tuple[object, ...]) -> bool:
    """Only an address of this machine can be bound."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0))
    except OSError:
        return False
    return True
