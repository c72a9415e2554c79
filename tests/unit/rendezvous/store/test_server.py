"""Connections that the store must drop without an effect on its clients."""

from __future__ import annotations

import contextlib
import hmac
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loopback import new_loopback
from raw_sockets import is_closed_by_peer, read_exactly

from horovod.errors import InitError
from horovod.rendezvous.base.handshake import Dialer, Listener, ProtocolError
from horovod.rendezvous.base.tcp import address_text
from horovod.rendezvous.store import values as stored_values
from horovod.rendezvous.store import wire
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

SECRET = b"s" * 32
MAGIC = b"hvdstor3"


def new_server(**options: Any) -> StoreServer:
    return StoreServer(SECRET, addresses=[(new_loopback(), 0)], **options)


class Reported:
    """A server and the lines that it reports from its thread."""

    def __init__(self) -> None:
        self.lines: queue.Queue[str] = queue.Queue()
        self.server = new_server(io_timeout_s=60.0, report=self.lines.put)

    def line(self) -> str:
        return self.lines.get(timeout=30)


@pytest.fixture
def reported() -> Iterator[Reported]:
    made = Reported()
    with made.server:
        yield made


@pytest.fixture
def bystander(reported: Reported) -> Iterator[StoreClient]:
    client = StoreClient(reported.server.address, SECRET, timeout_s=30)
    client.set("key", b"value")
    yield client
    assert client.get("key", 30) == b"value"
    client.close()


def connect(reported: Reported) -> socket.socket:
    return socket.create_connection(reported.server.address, timeout=30)


def hmac_of(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(struct.pack("!I", len(p)) + p for p in parts), "sha256")


class Raw:
    """A connection after its handshake, written out here so that it pins the protocol."""

    def __init__(self, reported: Reported) -> None:
        self.socket = connected = connect(reported)
        self.name = address_text(connected.getsockname())
        challenge = read_exactly(connected, 40)
        assert challenge.startswith(MAGIC)
        mine = os.urandom(32)
        said = (MAGIC, challenge[8:], mine, b"")
        connected.sendall(MAGIC + mine + hmac_of(SECRET, b"horovod dialer", *said))
        instance, proof = read_exactly(connected, 16), read_exactly(connected, 32)
        assert proof == hmac_of(SECRET, b"horovod listener", *said, instance)
        self._key = hmac_of(SECRET, b"key: horovod dialer", *said)
        self._number = 0

    def frame(self, body: bytes) -> bytes:
        """The next frame with its code."""
        framed = struct.pack("!I", len(body)) + body
        code = hmac.digest(self._key, struct.pack("!Q", self._number) + framed, "sha256")
        self._number += 1
        return framed + code

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def get_body(key: bytes, timeout_ms: int = 60_000) -> bytes:
    return wire.Request(wire.Operation.GET, key, b"", timeout_ms).to_bytes()


@pytest.mark.usefixtures("bystander")
def test_garbage_is_dropped_and_reported_with_its_address(reported: Reported) -> None:
    with connect(reported) as rude:
        rude.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
        assert is_closed_by_peer(rude)
        host, port = rude.getsockname()
        assert f"{host}:{port}" in (line := reported.line())
        assert "does not speak this protocol" in line


@pytest.mark.usefixtures("bystander")
def test_silence_is_dropped_after_a_deadline(reported: Reported) -> None:
    reported.server._io_timeout_s = 0.5
    with connect(reported) as silent:
        assert is_closed_by_peer(silent)
    assert ": no proof of the secret within 0.5 s" in reported.line()


@pytest.mark.usefixtures("bystander")
def test_a_trickle_does_not_move_the_deadline(reported: Reported) -> None:
    with Raw(reported) as slow:
        (peer,) = (p for p in reported.server._peers if p.name == slow.name)
        reported.server._io_timeout_s = peer._io_timeout_s = 0.5
        slow.socket.sendall(wire.LENGTH.pack(1000))
        try:
            while True:
                slow.socket.sendall(b"x")
                slow.socket.settimeout(0.02)
                try:
                    if not slow.socket.recv(1):
                        break
                except TimeoutError:
                    continue
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert "no whole message within 0.5 s" in reported.line()


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("length", [wire.MAX_BODY_BYTES + 1, 2**32 - 1])
def test_an_oversized_frame_is_dropped_unread(reported: Reported, length: int) -> None:
    with Raw(reported) as large:
        large.socket.sendall(wire.LENGTH.pack(length))
        assert is_closed_by_peer(large.socket)
    assert f"a message of {length} bytes" in reported.line()


@pytest.mark.usefixtures("bystander")
def test_half_a_message_is_reported_when_its_sender_leaves(reported: Reported) -> None:
    with Raw(reported) as half:
        half.socket.sendall(wire.LENGTH.pack(10) + b"abc")
    assert "in the middle" in reported.line()


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01",
        struct.pack("!B16sQIB", 9, b"", 0, 0, 0),
        struct.pack("!B16sQIB", 1, b"", 0, 0, 200),
    ],
)
def test_a_body_that_is_no_request_is_dropped(reported: Reported, body: bytes) -> None:
    with Raw(reported) as odd:
        odd.socket.sendall(odd.frame(body))
        assert is_closed_by_peer(odd.socket)
    assert "dropped the connection" in reported.line()


@pytest.mark.usefixtures("bystander")
def test_asking_while_parked_is_dropped(reported: Reported) -> None:
    with Raw(reported) as impatient:
        impatient.socket.sendall(impatient.frame(get_body(b"x")) + impatient.frame(get_body(b"x")))
        assert is_closed_by_peer(impatient.socket)
    assert "before it was answered" in reported.line()


@pytest.mark.usefixtures("bystander")
def test_a_proof_cannot_be_replayed(reported: Reported) -> None:
    with connect(reported) as first:
        hello = Dialer(wire.PROTOCOL, SECRET).hello(read_exactly(first, 40))
        first.sendall(hello)
        read_exactly(first, 48)
    with connect(reported) as second:
        second.sendall(hello)
        assert is_closed_by_peer(second)
    assert "does not know the job's secret" in reported.line()


def impostor(answer: Callable[[bytes], bytes]) -> tuple[socket.socket, Callable[[], None]]:
    """A listener for three connections; a client gives up after the third certain failure."""
    listener = socket.create_server((new_loopback(), 0))

    def serve() -> None:
        with listener:
            for _ in range(3):
                with listener.accept()[0] as connected:
                    connected.sendall(Listener(wire.PROTOCOL, SECRET).opening)
                    connected.sendall(answer(read_exactly(connected, wire.PROTOCOL.hello_bytes)))
                    is_closed_by_peer(connected)

    return listener, serve


def test_a_client_refuses_a_server_that_reflects_its_proof() -> None:
    listener, serve = impostor(lambda hello: hello[-wire.PROTOCOL.reply_bytes :])
    thread = threading.Thread(target=serve)
    address = listener.getsockname()
    thread.start()
    with pytest.raises(InitError, match="does not know the job's secret"):
        StoreClient(address, SECRET, timeout_s=30)
    thread.join(30)


def test_a_client_gives_up_on_a_server_that_says_nothing() -> None:
    with (
        socket.create_server((new_loopback(), 0)) as mute,
        pytest.raises(InitError, match="does not answer"),
    ):
        StoreClient(mute.getsockname(), SECRET, timeout_s=0.2)


def test_unauthenticated_peers_make_room_for_clients() -> None:
    lines: queue.Queue[str] = queue.Queue()
    with new_server(max_unauthenticated=4, report=lines.put) as server:
        crowd = [socket.create_connection(server.address) for _ in range(12)]
        client = StoreClient(server.address, SECRET, timeout_s=30)
        client.set("key", b"value")
        client.close()
        for each in crowd:
            each.close()
    assert "4 others have none either" in lines.get(timeout=30)


def test_each_address_is_reported_once_up_to_a_limit() -> None:
    lines: list[str] = []
    with new_server(report=lines.append) as server:
        for number in range(60):
            source = (f"127.0.1.{1 + number % 30}", 0)
            with socket.create_connection(server.address, 30, source) as rude:
                rude.sendall(b"x" * wire.PROTOCOL.hello_bytes)
                is_closed_by_peer(rude)
    assert len(lines) == 20
    assert len({line.split(": ")[1].rpartition(":")[0] for line in lines}) == 20
    assert lines[-1].endswith("other addresses are not reported")


def test_stored_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch, reported: Reported) -> None:
    monkeypatch.setattr(stored_values, "_MAX_STORED_BYTES", 1000)
    client = StoreClient(reported.server.address, SECRET, timeout_s=30)
    for _ in range(3):
        client.set("same", b"x" * 900)
    with pytest.raises(InitError, match="'other' cannot be set: the store is full"):
        client.set_and_get("other", bytes(900), "absent", 600.0)  # it does not wait
    with pytest.raises(InitError, match="'other' cannot be set: the store is full"):
        client.set("other", b"x" * 100)
    assert len(client.get("same", 30)) == 900
    client.close()


@given(body=st.binary(max_size=300))
def test_decoding_never_fails_in_another_way(body: bytes) -> None:
    try:
        request = wire.Request.from_bytes(body)
    except ProtocolError:
        return
    assert wire.Request.from_bytes(request.to_bytes()) == request


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(min_size=1, max_size=200))
def test_the_server_survives_any_bytes(data: bytes) -> None:
    with new_server(report=lambda text: None) as server:
        with socket.create_connection(server.address, timeout=30) as rude:
            rude.sendall(data)
            with contextlib.suppress(OSError):  # it is dropped already
                rude.shutdown(socket.SHUT_WR)
            assert is_closed_by_peer(rude)
        StoreClient(server.address, SECRET, timeout_s=30).close()
