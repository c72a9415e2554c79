"""Which names mean this machine. The only part of the launcher that looks names up."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from horovod.launch.hosts import HostSlots, Slot, assign_ranks

__all__ = ["is_this_machine", "local_slots"]


def local_slots(hosts: Sequence[HostSlots], process_count: int) -> tuple[Slot, ...]:
    """Places for ``process_count`` workers here, under the first of this machine's names.

    Raises:
        ValueError: a host is another machine, or there are too few slots.
    """
    for host in hosts:
        if not is_this_machine(host.hostname):
            raise ValueError(
                f"{host.hostname!r} is not this machine: several machines are not supported by "
                "this version; give no hosts or use localhost:N"
            )
    here = HostSlots(hosts[0].hostname, sum(host.slots for host in hosts))
    return assign_ranks((here,), process_count)


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
