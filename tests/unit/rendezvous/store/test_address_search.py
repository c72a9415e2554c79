"""Finding the store: names, both families, several addresses, reasons of failures."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from loopback import new_loopback

from horovod.errors import InitError
from horovod.rendezvous.store import hosted as address_search
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.hosted import find_store
from horovod.rendezvous.store.server import StoreServer

SECRET = b"s" * 32
HOST, OTHER_HOST, NO_HOST = new_loopback(), new_loopback(), new_loopback()


@pytest.fixture
def server() -> Iterator[StoreServer]:
    addresses = [(HOST, 0), ("::1", 0), (OTHER_HOST, 0)]
    with StoreServer(SECRET, addresses=addresses, report=lambda text: None) as running:
        yield running


def dead_address() -> tuple[str, int]:
    with socket.create_server((NO_HOST, 0)) as listener:
        return listener.getsockname()


def test_a_server_listens_at_all_its_addresses_and_no_other(server: StoreServer) -> None:
    assert [host for host, _ in server.addresses] == [HOST, "::1", OTHER_HOST]
    assert server.address == server.addresses[0]
    for number, address in enumerate(server.addresses):
        client = StoreClient(address, SECRET, timeout_s=30)
        client.set(f"key {number}", b"value")
        client.close()
    client = StoreClient(server.addresses[1], SECRET, timeout_s=30)
    assert [client.get(f"key {number}", 30) for number in range(3)] == [b"value"] * 3
    client.close()
    port = server.addresses[2][1]
    with pytest.raises(InitError, match=rf"{NO_HOST}:{port}"):
        StoreClient((NO_HOST, port), SECRET, timeout_s=30)


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="assign"):
        StoreServer(SECRET, addresses=[("127.0.0.1", 0), ("192.0.2.99", 0)])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_name_works_like_an_address(host: str) -> None:
    """``localhost`` may have both families; the one without a listener is skipped."""
    names = {info[4][0] for info in socket.getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)}
    if host not in names:
        pytest.skip(f"localhost is not {host} here")
    with StoreServer(SECRET, addresses=[(host, 0)], report=lambda text: None) as server:
        StoreClient(("localhost", server.address[1]), SECRET, timeout_s=30).close()


def test_an_unknown_name_is_reported() -> None:
    with pytest.raises(InitError, match=r"cannot find the launcher's store at no such name:80"):
        StoreClient(("no such name", 80), SECRET, timeout_s=30)


def test_the_first_authentic_answer_wins(server: StoreServer) -> None:
    for order in ([0, 1, 2], [2, 1, 0]):
        addresses = [server.addresses[index] for index in order]
        client = find_store(addresses, SECRET, 30)
        assert client.address == addresses[0]
        client.close()


def test_dead_silent_and_foreign_addresses_are_skipped(server: StoreServer) -> None:
    with (
        socket.create_server((new_loopback(), 0)) as mute,
        StoreServer(b"t" * 32, addresses=[(HOST, 0)], report=lambda text: None) as foreign,
    ):
        addresses = [dead_address(), mute.getsockname(), foreign.address, server.addresses[1]]
        client = find_store(addresses, SECRET, 30)
        assert client.address == server.addresses[1]
        client.set("key", b"")
        client.close()


def test_each_address_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client(StoreClient):
        """The silent address has less time, so that the search ends when all have failed."""

        def __init__(self, address: tuple[str, int], secret: bytes, *, timeout_s: float) -> None:
            super().__init__(address, secret, timeout_s=0.2 if address == silent else timeout_s)

    monkeypatch.setattr(address_search, "StoreClient", Client)
    dead = dead_address()
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as mute,
        StoreServer(b"t" * 32, addresses=[(HOST, 0)], report=lambda text: None) as foreign,
    ):
        silent = mute.getsockname()[:2]
        with pytest.raises(InitError, match="cannot be reached within 60 s") as raised:
            find_store([dead, silent, foreign.address], SECRET, 60)
    _, *lines = str(raised.value).splitlines()
    assert lines[0].startswith(f"  {NO_HOST}:{dead[1]}: ")
    assert "Connection refused" in lines[0]
    assert lines[1].startswith(f"  [::1]:{silent[1]}: ")
    assert "answer" in lines[1]
    assert "_HOROVOD_SECRET_KEY" in lines[2]


def test_no_thread_or_connection_is_left(server: StoreServer) -> None:
    def tries() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name.startswith("horovod-find-store")]

    find_store([dead_address(), server.address], SECRET, 30).close()
    for thread in tries():
        thread.join(30)
    assert tries() == []
