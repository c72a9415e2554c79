"""Where the store listens, and which hosts are this machine."""

from __future__ import annotations

import pytest

from horovod.launch.model.hosts import HostSlots
from horovod.launch.workers import addresses, machine
from horovod.launch.workers.addresses import (
    interface_addresses,
    is_own_address,
    resolve,
    store_addresses,
)
from horovod.launch.workers.machine import place


def test_names() -> None:
    assert "127.0.0.1" in resolve("localhost")
    assert resolve("no-such-host.invalid") == ()
    assert resolve("x" * 64) == ()
    assert resolve("a..b") == ()
    assert is_own_address("127.0.0.1")
    assert not is_own_address("198.51.100.77")
    assert not is_own_address("nonsense")


def test_one_machine_needs_the_loopback_interface_only() -> None:
    assert store_addresses({}, {}, ["nic9"]) == ("127.0.0.1",)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is 10.0.0.1 and 10.1.0.1; 10.<n>.* is reached from the latter for n > 0."""

    def towards(address: str) -> str:
        second = address.split(".")[1] if address.startswith("10.") else ""
        return {"": "", "0": "10.0.0.1"}.get(second, "10.1.0.1")

    monkeypatch.setattr(addresses, "_source_towards", towards)
    monkeypatch.setattr(addresses, "is_own_address", lambda a: a in ("10.0.0.1", "10.1.0.1"))
    monkeypatch.setattr(addresses, "interface_addresses", lambda names=(): ("all", *names))


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(
    ("remote", "seen", "chosen"),
    [
        ({"a": ("10.0.0.2",)}, {}, ("10.0.0.1",)),
        ({"a": ("10.0.0.2",), "b": ("10.0.0.3",)}, {}, ("10.0.0.1",)),
        ({"a": ("10.0.0.2", "10.2.0.2")}, {}, ("10.0.0.1", "10.1.0.1")),
        ({"a": ("10.0.0.2",)}, {"a": "10.1.0.1"}, ("10.0.0.1", "10.1.0.1")),
        ({"alias": ()}, {"alias": "10.1.0.1"}, ("10.1.0.1",)),
        (
            {"a": ("10.0.0.2",)},
            {"a": "198.51.100.9"},
            ("10.0.0.1",),
        ),  # behind an address translator
        ({"a": ("10.0.0.2",), "alias": ()}, {}, ("all",)),
        ({"a": ("172.16.0.1",)}, {}, ("all",)),
    ],
)
def test_the_store_listens_where_hosts_come_from(
    remote: dict[str, tuple[str, ...]], seen: dict[str, str], chosen: tuple[str, ...]
) -> None:
    assert store_addresses(remote, seen, []) == chosen


@pytest.mark.usefixtures("network")
def test_named_interfaces_decide() -> None:
    assert store_addresses({"a": ("10.0.0.2",)}, {"a": "10.1.0.1"}, ["nic9"]) == ("all", "nic9")


def test_the_interfaces_of_this_machine() -> None:
    assert "127.0.0.1" in interface_addresses(["lo"])
    assert set(interface_addresses(["lo"])) <= set(interface_addresses())
    assert not [a for a in interface_addresses() if a.startswith("fe80")]
    with pytest.raises(ValueError, match=r"network interface 'nic9': expected one of .*\blo\b"):
        interface_addresses(["lo", "nic9"])


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"me": ("127.0.0.1",), "a": ("198.51.100.1",), "b": ("198.51.100.2",)}
    monkeypatch.setattr(machine, "resolve_all", lambda names: {n: known[n] for n in names})
    hosts = [HostSlots(name, 1) for name in ("a", "me", "b", "localhost", "unasked")]
    placement = place(hosts, 4)
    assert [slot.hostname for slot in placement.slots] == ["a", "me", "me", "b"]
    assert placement.remote == {"a": ("198.51.100.1",), "b": ("198.51.100.2",)}
    assert place(hosts, 1).remote == {"a": ("198.51.100.1",)}
    assert place(hosts[1:2], 1).remote == {}
