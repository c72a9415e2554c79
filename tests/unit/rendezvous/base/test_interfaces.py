"""Which addresses a rank offers, and the order of routes to other ranks."""

from __future__ import annotations

import socket

import pytest

from horovod.errors import InitError
from horovod.rendezvous.base.interfaces import (
    Address,
    Listening,
    Route,
    local_addresses,
    routes_between,
)

LOOPBACK = Address("127.0.0.1", 8, "lo")
NEAR = Address("10.0.0.1", 24, "eth0", speed=1000)
FAST = Address("10.9.0.1", 24, "eth1", speed=40000)
LINK = Address("fe80::1", 64, "eth0", scope=2)
OWN = [LOOPBACK, NEAR, FAST, LINK, Address("fd00::1", 64, "eth0")]


def listening(*hosts: str, bits: int = 24, speed: int = 0) -> list[Listening]:
    return [
        Listening(Address(host, bits, "x", 7 if host.startswith("fe80") else 0, speed), 1000 + n)
        for n, host in enumerate(hosts)
    ]


def hosts(routes: list[Route]) -> list[str]:
    return [route.host for route in routes]


def test_networks_that_both_are_in_come_first() -> None:
    theirs = listening("192.168.7.2", "10.0.0.2", "fe80::2", "10.9.0.2")
    found = hosts(routes_between(OWN, theirs, False))
    assert found == ["10.0.0.2", "10.9.0.2", "192.168.7.2", "fe80::2"]


def test_fast_interfaces_come_before_slow_ones() -> None:
    theirs = listening("10.0.0.2", speed=1000) + listening("10.9.0.2", speed=40000)
    assert hosts(routes_between(OWN, theirs, False)) == ["10.9.0.2", "10.0.0.2"]


def test_own_addresses_are_no_routes_to_another_machine() -> None:
    theirs = listening("127.0.0.1", "10.0.0.1", "10.0.0.2", "::1")
    assert hosts(routes_between(OWN, theirs, False)) == ["10.0.0.2"]


def test_within_one_network_namespace_loopback_comes_first() -> None:
    theirs = listening("10.0.0.1", "127.0.0.1")
    assert hosts(routes_between(OWN, theirs, True)) == ["127.0.0.1", "10.0.0.1"]


def test_link_local_addresses_are_tried_on_each_own_link() -> None:
    own = [*OWN, Address("fe80::9", 64, "eth1", scope=3)]
    found = routes_between(own, listening("fe80::2"), False)
    assert found == [Route("fe80::2", 1000, 2), Route("fe80::2", 1000, 3)]
    assert str(found[0]) == "[fe80::2%2]:1000"
    assert not routes_between([NEAR], listening("fe80::2"), False)


def test_routes_of_both_families() -> None:
    assert Route("10.0.0.1", 5).target == ("10.0.0.1", 5)
    assert Route("::1", 5, 2).target == ("::1", 5, 0, 2)
    assert Route("::1", 5).family == socket.AF_INET6


def test_this_machine_has_loopback() -> None:
    addresses = local_addresses()
    assert ("127.0.0.1", 8, "lo") in {(a.host, a.bits, a.interface) for a in addresses}
    assert {a.interface for a in local_addresses(["lo", "elsewhere"])} == {"lo"}


def test_an_unknown_interface_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InitError, match=r"HOROVOD_GLOO_IFACE='none0': no such .* there are .*lo"):
        local_addresses(["none0"])
