"""Connections to the store that are cut or altered on the way: the client dials and asks again."""

from __future__ import annotations

import errno
import io
import random
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from loopback import new_loopback
from tcp_proxy import TO_CLIENT, TO_SERVER, Meddler, Proxy, cut_after, flip

from horovod.errors import InitError
from horovod.rendezvous.store import channel as store_channel
from horovod.rendezvous.store import client as store
from horovod.rendezvous.store import wire
from horovod.rendezvous.store.channel import StoreChannel
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

SECRET = b"s" * 32
VALUE = b"value" * 10
# Bytes in each direction during ``use``; a test below checks them.
BYTES = {
    TO_SERVER: 72 + 119 + 69 + 69 + (119 + 69),
    TO_CLIENT: 40 + 48 + 37 + 87 + 37 + (37 + 87),
}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_PAUSE_S", 0.001)


class Served:
    """A server, and the values that clients have set."""

    def __init__(self) -> None:
        self.set: list[tuple[str, bytes]] = []
        self.reports: list[str] = []
        self.server = StoreServer(
            SECRET,
            addresses=[(new_loopback(), 0)],
            report=self.reports.append,
            io_timeout_s=60.0,
            on_set=lambda key, value: self.set.append((key, value)),
        )

    def use(self, meddler: Meddler) -> int:
        """Use a client with this meddler on its first connection; return how many it needed."""
        self.set.clear()
        with Proxy(self.server.address, [meddler]) as proxy:
            client = StoreClient(proxy.address, SECRET, timeout_s=60)
            client.set("key", VALUE)
            assert client.get("key", 30) == VALUE
            with pytest.raises(TimeoutError):
                client.get("not", 0.0)
            assert client.set_and_get("yek", VALUE, "key", 30) == VALUE
            client.close()
            assert self.set == [("key", VALUE), ("yek", VALUE)]
            return proxy.count


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    with made.server:
        yield made


@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT])
def test_a_connection_that_is_cut_anywhere_is_dialled_again(served: Served, direction: int) -> None:
    total = BYTES[direction]
    for count in range(total):
        assert served.use(cut_after(direction, count)) == 2, count
    assert served.use(cut_after(direction, total)) == 1


@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT])
def test_every_flipped_bit_is_detected(
    served: Served, monkeypatch: pytest.MonkeyPatch, direction: int
) -> None:
    # A flipped length makes one side wait for bytes that do not come.
    served.server._io_timeout_s = 1.0
    monkeypatch.setattr(store_channel, "_MESSAGE_S", 1.0)
    choice = random.Random(direction)
    for position in choice.sample(range(BYTES[direction]), 60):
        assert served.use(flip(direction, position, choice.randrange(8))) >= 1


def test_a_flipped_request_is_reported_with_its_address(served: Served) -> None:
    assert served.use(flip(TO_SERVER, 72 + 40, 0)) == 2
    (line,) = served.reports
    assert "store: dropped the connection from 127." in line
    assert "a message with a wrong code" in line


def test_many_cuts_in_a_row_do_not_end_a_client(served: Served) -> None:
    cuts = [cut_after(TO_CLIENT, count) for count in (0, 0, 20, 40, 60, 87, 88, 0, 0, 90)]
    with Proxy(served.server.address, cuts) as proxy:
        client = StoreClient(proxy.address, SECRET, timeout_s=30)
        client.set("key", b"value")
        assert client.get("key", 30) == b"value"
        client.close()
        assert proxy.count == len(cuts) + 1
    assert served.set == [("key", b"value")]


def test_a_waiting_client_survives_a_cut(served: Served) -> None:
    with (
        Proxy(served.server.address, [cut_after(TO_SERVER, 72 + 10)]) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        client = StoreClient(proxy.address, SECRET, timeout_s=30)
        waiting = pool.submit(client.get, "late", 30)
        served.server.set("late", b"here")
        assert waiting.result(30) == b"here"
        client.close()


def test_a_store_that_is_always_cut_fails_at_the_deadline(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(served.server.address, [cut_after(TO_CLIENT, 0)] * 100_000) as proxy:
        # Ten seconds for each connection, however long it takes.
        clock = SimpleNamespace(monotonic=lambda: 10.0 * proxy.count)
        monkeypatch.setattr(store, "time", clock)
        with pytest.raises(InitError, match="store at"):
            StoreClient(proxy.address, SECRET, timeout_s=50)
        assert proxy.count == 5


def test_another_store_at_the_same_address_is_not_taken_for_the_first() -> None:
    """The second store has no values of the first one."""
    first = StoreServer(SECRET, report=lambda text: None)
    first.start()
    with Proxy(first.address, []) as proxy:
        client = StoreClient(proxy.address, SECRET, timeout_s=30)
        with StoreServer(SECRET, report=lambda text: None) as second:
            proxy._server = second.address
            first.close()
            with pytest.raises(InitError, match="another store, which has no values of this job"):
                client.get("key", 30)
    assert client.is_closed


def test_closing_a_client_ends_its_attempts(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_PAUSE_S", 60.0)
    monkeypatch.setattr(store, "_MOST_PAUSE_S", 60.0)
    cut = threading.Event()

    def meddle(direction: int, passed: int, data: bytes) -> bytes | None:
        cut.set()
        return None

    with Proxy(served.server.address, [lambda *about: about[2], *[meddle] * 9]) as proxy:
        client = StoreClient(proxy.address, SECRET, timeout_s=300)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.get, "never", 300)
            served.server.set("other", b"")
            for peer in list(served.server._peers):
                served.server._order(lambda peer=peer: served.server._drop(peer, "for the test"))
            assert cut.wait(30)
            client.close()
            with pytest.raises(InitError):
                waiting.result(30)


def test_a_delayed_request_changes_nothing(served: Served) -> None:
    """It is on a connection that its client has left, after later requests of the client."""
    old, new = (
        StoreChannel(served.server.address, SECRET, timeout_s=30, connect_s=30) for _ in range(2)
    )

    def set_over(channel: StoreChannel, number: int, value: bytes) -> bytes:
        request = wire.Request(wire.Operation.SET, b"key", value, client=b"c" * 16, number=number)
        (answer,) = channel.ask([request.to_bytes()], 30)
        return answer

    answers = [
        set_over(channel, number, value)
        for channel, number, value in ((new, 1, b"1"), (new, 3, b"3"), (old, 1, b"1"))
    ]
    assert answers == [bytes((wire.Status.DONE,))] * 3
    assert served.set == [("key", b"1"), ("key", b"3")]
    assert served.server.found("key") == {"key": b"3"}
    for channel in (old, new):
        channel.close()


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "full"), ValueError("closed")])
def test_a_server_continues_when_its_reports_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    written: list[str] = []

    class Stderr(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            raise error

    with StoreServer(SECRET) as server:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", Stderr())
            with pytest.raises(InitError, match="refused this process"):
                StoreClient(server.address, b"x" * 32, timeout_s=30)
            client = StoreClient(server.address, SECRET, timeout_s=30)
        client.set("key", b"value")
        client.close()
    assert "does not know the job's secret" in written[0]


def test_a_loopback_interface_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(made: socket.socket, target: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(InitError, match="the loopback interface is down"):
        StoreChannel(("127.0.0.1", 1), SECRET, timeout_s=10, connect_s=10)
