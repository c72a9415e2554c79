"""One client or many with the launcher's store: values, waits, deadlines, end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from loopback import new_loopback
from worlds import MemoryStore

from horovod.errors import InitError
from horovod.rendezvous.store import wire
from horovod.rendezvous.store.client import StoreClient, swap_and_get
from horovod.rendezvous.store.server import StoreServer

SECRET = b"s" * 32


@pytest.fixture
def server() -> Iterator[StoreServer]:
    addresses = [(new_loopback(), 0)]
    with StoreServer(SECRET, addresses=addresses, report=lambda text: None) as running:
        yield running


def client_of(server: StoreServer, secret: bytes = SECRET) -> StoreClient:
    return StoreClient(server.address, secret, timeout_s=30)


@pytest.fixture
def client(server: StoreServer) -> Iterator[StoreClient]:
    connected = client_of(server)
    yield connected
    connected.close()


def test_listens_on_loopback_only() -> None:
    with StoreServer(SECRET, report=lambda text: None) as server:
        assert server.address[0] == "127.0.0.1"


@pytest.mark.parametrize("value", [b"", b"x", b"\0\xff" * 1000, b"y" * 60_000])
def test_a_value_is_stored_unchanged(client: StoreClient, value: bytes) -> None:
    client.set("key", value)
    assert client.get("key", 30) == value


def test_a_later_value_replaces_the_earlier(client: StoreClient) -> None:
    client.set("key", b"1")
    client.set("key", b"2")
    assert client.get("key", 30) == b"2"


def test_an_absent_key_times_out_and_the_connection_lives_on(client: StoreClient) -> None:
    with pytest.raises(TimeoutError, match=r"'absent' was not set within 0.05 s"):
        client.get("absent", 0.05)
    client.set("absent", b"now")
    assert client.get("absent", 30) == b"now"


def test_a_value_is_set_also_if_the_wanted_one_is_absent(client: StoreClient) -> None:
    with pytest.raises(TimeoutError, match="'absent' was not set within 0 s"):
        client.set_and_get("key", b"value", "absent", 0.0)
    assert client.set_and_get("other", b"2", "key", 30) == b"value"


def test_a_swap_says_what_was_there(client: StoreClient) -> None:
    for store in (client, MemoryStore()):
        store.set("there", b"0")
        seen: list[tuple[int, bytes | None]] = []

        def stop_at_2(
            number: int, found: bytes | None, seen: list[tuple[int, bytes | None]] = seen
        ) -> bool:
            seen.append((number, found))
            return found == b"2"

        def swap(value: bytes, *wanted: tuple[str, float]) -> list[bytes | None]:
            return swap_and_get(store, "key", value, wanted, stop_at_2)  # noqa: B023

        assert swap(b"1", ("absent", 0.0)) == [None, None]
        assert swap(b"2", ("there", 30), ("key", 30)) == [b"1", b"0", b"2"]
        assert swap(b"3", ("absent", 300)) == [b"2"]
        assert swap(b"2", ("key", 30), ("absent", 300)) == [b"3", b"2"]
        assert store.get("key", 30) == b"2"
        assert seen == [(0, None), (0, b"1"), (1, b"0"), (0, b"2"), (0, b"3"), (1, b"2")]


def test_get_waits_for_set(server: StoreServer, client: StoreClient) -> None:
    asked = threading.Event()

    def ask(number: int) -> bytes:
        mine = client_of(server)
        try:
            if number == 0:
                asked.set()
            return mine.get("late", 30)
        finally:
            mine.close()

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, number) for number in range(8)]
        assert asked.wait(30)
        client.set("late", b"here")
        assert [answer.result() for answer in answers] == [b"here"] * 8


def test_many_clients_at_once(server: StoreServer) -> None:
    count = 16

    def exchange(number: int) -> list[bytes]:
        mine = client_of(server)
        try:
            mine.set(f"from/{number}", str(number).encode())
            return [mine.get(f"from/{other}", 30) for other in range(count)]
        finally:
            mine.close()

    with ThreadPoolExecutor(count) as pool:
        expected = [str(number).encode() for number in range(count)]
        assert list(pool.map(exchange, range(count))) == [expected] * count


def test_a_too_large_value_is_refused_before_it_is_sent(client: StoreClient) -> None:
    with pytest.raises(ValueError, match="at most 65536"):
        client.set("key", b"x" * wire.MAX_BODY_BYTES)
    with pytest.raises(ValueError, match="at most 255"):
        client.set("k" * 256, b"")
    client.set("key", b"still fine")


def test_a_client_without_the_secret_gets_the_reason(server: StoreServer) -> None:
    with pytest.raises(InitError, match="_HOROVOD_SECRET_KEY"):
        client_of(server, b"t" * 32)


def test_the_end_of_a_server_fails_waiting_clients() -> None:
    server = StoreServer(SECRET)
    server.start()
    client = client_of(server)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "never", 30)
        client_of(server).close()  # so the server's loop has run once
        server.close()
        with pytest.raises(InitError, match="the store at"):
            waiting.result()
    assert client.is_closed
    with pytest.raises(InitError, match="has ended"):
        client.set("key", b"")


def test_no_listener_is_an_init_error(server: StoreServer) -> None:
    server.close()
    with pytest.raises(InitError, match="is its launcher still running"):
        client_of(server)


def test_connections_made_before_start_are_served() -> None:
    server = StoreServer(SECRET)
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(client_of, server)
        server.start()
        connecting.result().close()
    server.close()


def test_an_idle_server_sleeps(server: StoreServer, client: StoreClient) -> None:
    """Without requests the thread waits without a timeout."""
    client.set("key", b"")
    assert server._seconds_to_next_deadline() is None


def test_no_descriptor_is_left() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with StoreServer(SECRET) as server:
            client = client_of(server)
            client.set("key", b"")
            client.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_server_that_was_never_started_closes_its_listeners() -> None:
    before = len(os.listdir("/proc/self/fd"))
    server = StoreServer(SECRET)
    server.listen([("127.0.0.1", 0)])
    server.close()
    assert len(os.listdir("/proc/self/fd")) <= before
