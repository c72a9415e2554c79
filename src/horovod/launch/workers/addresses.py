"""Which addresses of this machine the workers of other hosts can use to reach it.

A name is looked up here, and the system's routes say which of our addresses leads there. A name may
mean something else to ssh, or be unknown to other hosts. So the address from which a host has seen
us connect counts, too. No packet is sent.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence

from horovod.rendezvous.base.interfaces import local_addresses

_LOOPBACK = "127.0.0.1"
_ANY_PORT = 9  # a route depends on no port


def resolve(hostname: str) -> tuple[str, ...]:
    """The addresses of ``hostname``; none if it is unknown. May ask DNS."""
    try:
        found = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # a label of over 63 characters is invalid
        return ()
    return tuple(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


def resolve_all(hostnames: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """``resolve`` for many names, in parallel."""
    if len(hostnames) < 2:
        return {name: resolve(name) for name in hostnames}
    # Imported here, because a job on one machine looks up no names.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(hostnames), 32)) as pool:
        return dict(zip(hostnames, pool.map(resolve, hostnames), strict=True))


def is_own_address(address: str) -> bool:
    """Whether ``address`` is one of this machine's. Only those can be bound."""
    try:
        with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def interface_addresses(names: Sequence[str] = ()) -> tuple[str, ...]:
    """The addresses of these interfaces, or of all that are up.

    Raises:
        ValueError: there is no such interface here, it is down or has no address.
    """
    usable: dict[str, list[str]] = {}
    for found in local_addresses():
        if _is_usable(found.host):
            usable.setdefault(found.interface, []).append(found.host)
    for name in names:
        if name not in usable:
            raise ValueError(
                f"network interface {name!r}: expected one of this machine's that are up: "
                + ", ".join(usable)
            )
    chosen = [address for name in names or usable for address in usable[name]]
    return tuple(dict.fromkeys(chosen))


def store_addresses(
    remote: Mapping[str, Sequence[str]], seen: Mapping[str, str], interfaces: Sequence[str]
) -> tuple[str, ...]:
    """The addresses on which to listen for the hosts of ``remote``, addresses by name.

    ``seen`` is, by host, this machine's address as the host sees it. ``interfaces``, if given, are
    the only ones to use. For a host about which nothing is known, all interfaces are used.

    Raises:
        ValueError: see ``interface_addresses``.
    """
    if not remote:
        return (_LOOPBACK,)
    if interfaces:
        return interface_addresses(interfaces)
    chosen: list[str] = []
    for hostname, addresses in remote.items():
        ways = [way for address in addresses if (way := _source_towards(address))]
        if hostname in seen and is_own_address(seen[hostname]):
            ways.append(seen[hostname])
        if not ways:
            return interface_addresses()
        chosen += ways
    return tuple(dict.fromkeys(chosen))


def _source_towards(address: str) -> str:
    """The source address of packets to ``address``; empty if there is no route."""
    try:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
            probe.connect((address, _ANY_PORT))
            source = str(probe.getsockname()[0])
    except OSError:
        return ""
    return source if _is_usable(source) else ""


def _is_usable(address: str) -> bool:
    """Whether the address needs no interface beside it."""
    return "%" not in address and not ipaddress.ip_address(address).is_link_local


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
