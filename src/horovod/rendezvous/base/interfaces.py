"""Addresses of this machine that other hosts may reach, and routes to another machine.

``psutil`` reads the interfaces. Nothing is sent. The order of the routes is a pure decision.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from horovod.core.base.checked import Fields, Record, between, limited, shown
from horovod.errors import InitError


@dataclass(frozen=True)
class Address(Record):
    """An address of an interface that is up: ``10.0.0.5``, ``24`` bits of network.

    ``scope``: index of the interface for link-local addresses, else 0.
    ``speed``: Mbit/s, 0 where the system does not say.
    """

    host: Annotated[str, limited(64)]
    bits: Annotated[int, between(0, 128)]
    interface: Annotated[str, shown(255)]
    scope: Annotated[int, between(0, 2**32 - 1)] = 0
    speed: int = 0

    @classmethod
    def read(cls, fields: Fields) -> Address:
        """See ``Record.read``; the host must be an address too."""
        address = super().read(fields)
        try:
            _ = address.network
        except ValueError as error:
            raise fields.error("host", address.host, f"an address ({error})") from None
        if "%" in address.host:
            raise fields.error("host", address.host, "an address without an interface")
        return address

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address alone."""
        return ipaddress.ip_address(self.host)

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """The network that is reached without a router."""
        return ipaddress.ip_network(f"{self.host}/{self.bits}", strict=False)


@dataclass(frozen=True)
class Listening(Record):
    """An address and the port where its owner listens."""

    address: Address
    port: Annotated[int, between(1, 65535)]


class Route(NamedTuple):
    """Where to connect to, as seen from the dialing machine."""

    host: str
    port: int
    scope: int = 0

    @property
    def family(self) -> socket.AddressFamily:
        """IPv4 or IPv6."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def target(self) -> tuple[str, int] | tuple[str, int, int, int]:
        """For ``socket.connect``."""
        if self.family == socket.AF_INET6:
            return (self.host, self.port, 0, self.scope)
        return (self.host, self.port)

    def __str__(self) -> str:
        host = f"{self.host}%{self.scope}" if self.scope else self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def local_addresses(interfaces: Sequence[str] = ()) -> list[Address]:
    """The addresses of interfaces that are up; only of ``interfaces``, if any are named.

    Raises:
        InitError: none of the named interfaces exists and is up.
    """
    import psutil  # only worlds of several hosts need it

    states = psutil.net_if_stats()
    found = psutil.net_if_addrs()
    up = [name for name in found if name in states and states[name].isup]
    chosen = [name for name in up if not interfaces or name in interfaces]
    if interfaces and not chosen:
        raise InitError(
            f"init: HOROVOD_GLOO_IFACE={','.join(interfaces)!r}: no such interface is up here; "
            f"there are {', '.join(sorted(up)) or 'none'}"
        )
    return [
        _address(name, entry.address, entry.netmask, states[name].speed)
        for name in chosen
        for entry in found[name]
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    ]


def _address(interface: str, host: str, netmask: str | None, speed: int) -> Address:
    host, _, _ = host.partition("%")
    ip = ipaddress.ip_address(host)
    bits = bin(int(ipaddress.ip_address(netmask))).count("1") if netmask else ip.max_prefixlen
    scope = socket.if_nametoindex(interface) if ip.version == 6 and ip.is_link_local else 0
    return Address(host, bits, interface, scope, speed)


def routes_between(
    own: Sequence[Address], theirs: Sequence[Listening], is_same_network: bool
) -> list[Route]:
    """Routes to a rank that listens at ``theirs``, the most promising first.

    Loopback leads only to processes of the same network namespace, and comes first there. Then come
    addresses of a network that both machines are in, fast interfaces first. Link-local addresses
    come last, once for each link of this machine.
    """
    mine = {address.host for address in own}
    ranked: list[tuple[tuple[int, int], Route]] = []
    for there in theirs:
        address = there.address
        is_loopback = address.ip.is_loopback
        if not is_same_network and (is_loopback or address.host in mine):
            continue  # leads back to this machine
        scopes = sorted({a.scope for a in own if a.scope}) if address.scope else [0]
        preference = 0 if is_loopback else _preference(own, address)
        ranked += [
            ((preference, -address.speed), Route(address.host, there.port, scope))
            for scope in scopes
        ]
    ranked.sort(key=lambda entry: entry[0])
    return [route for _, route in ranked]


def _preference(own: Sequence[Address], theirs: Address) -> int:
    ip = theirs.ip
    if ip.is_link_local:
        return 3
    is_near = any(ip.version == a.ip.version and ip in a.network for a in own)
    return 1 if is_near else 2
