"""Loopback addresses that no other process of this machine dials."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

from horovod.rendezvous import mesh
from horovod.rendezvous.base.interfaces import Address, Route
from horovod.rendezvous.base.tcp import dialing_socket
from horovod.rendezvous.links import dialing, listening


def new_loopback() -> str:
    """A random address of 127.0.0.0/8.

    A port of 127.0.0.1 may have been another process's before, and peers of that process may still
    dial it. The system gives connections to this address the source 127.0.0.1.
    """
    first, second, third = os.urandom(3)
    return f"127.{64 + first % 128}.{second}.{1 + third % 254}"


def isolate_links(patch: Callable[[object, str, object], None], addresses: int = 1) -> None:
    """Ranks listen at new loopback addresses only, and dial from these as other hosts would.

    So none of them is reported as an unauthenticated peer, however slow it is. ``patch`` is
    ``setattr``.
    """
    hosts = [Address(new_loopback(), 8, "lo") for _ in range(addresses)]

    def local_addresses(interfaces: Sequence[str]) -> list[Address]:
        return hosts

    def dialing_from_there(route: Route) -> socket.socket:
        made = dialing_socket(route)
        made.bind((route.host, 0))
        return made

    patch(mesh, "local_addresses", local_addresses)
    patch(dialing, "dialing_socket", dialing_from_there)
    patch(listening, "_HANDSHAKE_TIMEOUT_S", 500.0)
    patch(dialing, "_ANSWER_TIMEOUT_S", 500.0)
