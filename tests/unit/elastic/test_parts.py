"""Parts of a state on their way to a process that is about to join."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence

import pytest
from loopback import new_loopback
from raw_sockets import is_closed_by_peer, read_exactly
from tcp_proxy import TO_CLIENT, TO_SERVER, Proxy, cut_after, flip
from waiting import PATIENCE_S, until

from horovod.core.base import threads
from horovod.elastic import part_client, part_server
from horovod.elastic.part_client import PartClient
from horovod.elastic.part_server import PartServer
from horovod.elastic.parts import (
    CHUNK_BYTES,
    PROTOCOL,
    MisfitError,
    PartAnswer,
    PartRequest,
    PartServerAddresses,
    StatePart,
    receive_exactly,
)
from horovod.errors import InitError
from horovod.rendezvous.base.deadlines import Deadline

SECRET = bytes(range(32))


@pytest.fixture(autouse=True)
def _every_lag_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_server, "_SHORT_S", 0.0)


class Texts:
    """A state of bytes; each is a part of one tensor, whose header is its length."""

    def __init__(self, *values: bytes) -> None:
        self.values = list(values)
        self.changed_at = [0] * len(values)
        self.unsettled: set[int] = set()
        self.most_bytes = 2**40
        self.sent: list[int] = []

    def __len__(self) -> int:
        return len(self.values)

    def read(self) -> list[StatePart]:
        return [
            StatePart((len(each),), (each,), len(each), at, number not in self.unsettled)
            for number, (each, at) in enumerate(zip(self.values, self.changed_at, strict=True))
        ]

    def bytes_of(self, tensor: bytes) -> memoryview:
        self.sent.append(self.values.index(tensor))
        return memoryview(tensor)

    def expected_bytes(self, number: int, header: tuple[int, ...]) -> int:
        (length,) = header
        if length > self.most_bytes:
            raise ValueError(f"at most {self.most_bytes}")
        return length

    def put(self, number: int, header: tuple[int, ...], data: bytearray) -> None:
        self.values[number] = bytes(data)

    def change(self, number: int, value: bytes) -> None:
        self.values[number] = value


def new_parts() -> Texts:
    return Texts(b"first", b"", bytes(3 * CHUNK_BYTES + 7), b"last")


@pytest.fixture
def parts() -> Texts:
    return new_parts()


@pytest.fixture
def server(parts: Texts) -> Iterator[PartServer]:
    served = PartServer(parts, SECRET, [new_loopback()])
    yield served
    served.close()


@contextlib.contextmanager
def following(
    addresses: Sequence[tuple[str, int]], room: Texts, secret: bytes = SECRET
) -> Iterator[PartClient]:
    client = PartClient(room, secret, lambda: PartServerAddresses(tuple(addresses)))
    try:
        yield client
    finally:
        client.stop()


def empty() -> Texts:
    return Texts(*[b"?"] * 4)


def values_after(client: PartClient, room: Texts) -> list[bytes]:
    client.stop()
    return room.values


def test_all_parts_arrive_before_the_wait_ends(server: PartServer, parts: Texts) -> None:
    room = empty()
    with following(server.addresses, room) as client:
        client.wait(PATIENCE_S)
        assert not server.should_wait()
        assert values_after(client, room) == parts.values


def test_changes_follow_and_training_waits_for_them(server: PartServer, parts: Texts) -> None:
    room = empty()
    assert not server.should_wait()  # there is no client
    with following(server.addresses, room) as client:
        client.wait(PATIENCE_S)
        for number in (2, 0):
            parts.change(number, b"changed %d" % number)
            assert server.should_wait()
            until(lambda: not server.should_wait())
        assert values_after(client, room) == parts.values
    parts.change(0, b"no client needs it")
    until(lambda: not server.should_wait())


def test_training_does_not_wait_without_end(
    server: PartServer, parts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(server.addresses, empty()) as client:
        client.wait(PATIENCE_S)
        parts.unsettled.add(2)  # and stays so
        assert server.should_wait()
        monkeypatch.setattr(part_server, "_PATIENCE_S", 0.0)
        assert not server.should_wait()


def test_training_does_not_wait_for_what_takes_a_moment(
    server: PartServer, parts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(server.addresses, empty()) as client:
        client.wait(PATIENCE_S)
        parts.unsettled.add(2)
        assert server.should_wait()
        monkeypatch.setattr(part_server, "_SHORT_S", PATIENCE_S)
        assert not server.should_wait()


def test_a_part_that_will_change_comes_when_it_has(server: PartServer, parts: Texts) -> None:
    room = empty()
    with following(server.addresses, room) as client:
        client.wait(PATIENCE_S)
        parts.unsettled.add(0)
        parts.change(0, b"averaged")
        parts.change(3, b"settled")
        until(lambda: parts.sent[-1] == 3)
        assert server.should_wait()
        parts.unsettled.clear()
        parts.change(0, b"merged")
        until(lambda: not server.should_wait())
        assert values_after(client, room) == parts.values
    assert parts.sent[-2:] == [3, 0]


def test_parts_that_changed_last_come_first(parts: Texts) -> None:
    parts.changed_at = [3, 1, 4, 2]
    parts.unsettled = {2}  # a client that has none gets it in the end
    with (
        contextlib.closing(PartServer(parts, SECRET, [new_loopback()])) as server,
        following(server.addresses, empty()) as client,
    ):
        client.wait(PATIENCE_S)
    assert parts.sent == [0, 3, 1, 2]


@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT])
@pytest.mark.parametrize("position", [0, 9, 45, 80, 100, 140, 190, 260, 400])
def test_an_altered_byte_ends_the_connection_and_nothing_else(
    server: PartServer, parts: Texts, direction: int, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_client, "_PAUSE_S", 0.0)
    room = empty()
    with (
        Proxy(server.addresses[0], [flip(direction, position, 3)]) as proxy,
        following([proxy.address], room) as client,
    ):
        client.wait(PATIENCE_S)
        assert proxy.count == 2
        assert values_after(client, room) == parts.values


def test_parts_that_have_arrived_are_kept_when_the_connection_is_cut(
    server: PartServer, parts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_client, "_PAUSE_S", 0.0)
    parts.changed_at = [4, 3, 1, 2]
    room = empty()
    with (
        Proxy(server.addresses[0], [cut_after(TO_CLIENT, 2 * CHUNK_BYTES)]) as proxy,
        following([proxy.address], room) as client,
    ):
        client.wait(PATIENCE_S)
        assert values_after(client, room) == parts.values
    assert parts.sent == [0, 1, 3, 2, 2]


def test_an_address_that_leads_elsewhere_is_passed_over(server: PartServer, parts: Texts) -> None:
    room = empty()
    other = bytes(32)
    with (
        contextlib.closing(PartServer(Texts(b"other"), other, [new_loopback()])) as stranger,
        following([*stranger.addresses, *server.addresses], room) as client,
    ):
        client.wait(PATIENCE_S)
        assert values_after(client, room) == parts.values


def test_without_the_secret_nothing_arrives(server: PartServer, parts: Texts) -> None:
    with following(server.addresses, empty(), bytes(32)) as client:
        client.wait(PATIENCE_S)
        assert not client.numbers
    assert parts.sent == []


def test_another_number_of_parts_is_of_another_state(server: PartServer, parts: Texts) -> None:
    with (
        following(server.addresses, Texts(b"?")) as client,
        pytest.raises(MisfitError, match=r"the state of rank 0 has 4 parts, expected 1 as in this"),
    ):
        client.wait(PATIENCE_S)
    assert parts.sent == []


def test_the_number_of_parts_changes_while_a_process_follows(
    server: PartServer, parts: Texts
) -> None:
    with following(server.addresses, empty()) as client:
        client.wait(PATIENCE_S)
        parts.values.append(b"another one")
        parts.changed_at.append(1)
        assert not server.should_wait()
        until(lambda: client._misfit is not None)


def test_parts_without_contents_arrive_at_once(server: PartServer, parts: Texts) -> None:
    """As before the first step of a state."""
    parts.values = [b""] * 4
    room = empty()
    with following(server.addresses, room) as client:
        client.wait(PATIENCE_S)
        assert values_after(client, room) == parts.values


@pytest.mark.parametrize("where", ["put", "find"])
def test_an_error_of_the_program_ends_the_wait(
    server: PartServer, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    def fail(*_: object) -> PartServerAddresses:
        raise RuntimeError("out of memory")

    room = empty()
    if where == "put":
        room.put = fail  # type: ignore[method-assign,assignment]
    addresses = PartServerAddresses(server.addresses)
    with caplog.at_level(logging.WARNING):
        client = PartClient(room, SECRET, fail if where == "find" else lambda: addresses)
        client.wait(PATIENCE_S)
        client.stop()
    assert "out of memory" in caplog.text
    assert "the rest of the state follows after joining" in caplog.text


def refused(parts: Texts, room: Texts, caplog: pytest.LogCaptureFixture) -> str:
    """What is logged where a client gives up."""
    with (
        contextlib.closing(PartServer(parts, SECRET, [new_loopback()])) as server,
        caplog.at_level(logging.WARNING),
        following(server.addresses, room) as client,
    ):
        client.wait(PATIENCE_S)
    return caplog.text


def test_a_header_that_does_not_fit_is_refused(server: PartServer) -> None:
    room = empty()
    room.most_bytes = 10
    text = r"rank 0 has part 2 of \[196615\], expected at most 10 as in this process; make models"
    with following(server.addresses, room) as client, pytest.raises(MisfitError, match=text):
        client.wait(PATIENCE_S)


def test_another_length_than_that_of_the_header_is_refused(caplog) -> None:
    room = empty()
    room.expected_bytes = lambda number, header: 2  # type: ignore[method-assign]
    text = refused(Texts(b"four", b"5", b"6", b"7"), room, caplog)
    assert "in field size_bytes; expected 2" in text


@pytest.mark.parametrize(
    ("answer", "field"),
    [
        (PartAnswer(4, part=4, version=1, header=(1,), size_bytes=1), "part"),
        (PartAnswer(4, part=5000, version=1), "part"),
        (PartAnswer(4, part=0, version=-2), "version"),
        (PartAnswer(4, part=0, version=1, header=(-1,)), "header"),
        (PartAnswer(4, part=0, version=1, header=tuple(range(65))), "header"),
        (PartAnswer(4, part=0, version=1, header=(1,), size_bytes=-1), "size_bytes"),
    ],
)
def test_impossible_numbers_of_a_server_are_refused(
    parts: Texts, caplog, monkeypatch, answer: PartAnswer, field: str
) -> None:
    monkeypatch.setattr(PartServer, "_answer", lambda *given: given[-1].send(answer.to_bytes()))
    text = refused(parts, empty(), caplog)
    assert f"in field {field}; expected" in text


def test_data_of_another_length_than_announced_is_refused(parts, caplog, monkeypatch) -> None:
    told = [PartAnswer(4, part=0, version=1, header=(3,), size_bytes=3).to_bytes(), b"four"]
    monkeypatch.setattr(PartServer, "_answer", lambda *given: [*map(given[-1].send, told)])
    text = refused(parts, empty(), caplog)
    assert "has '4 bytes' in field data; expected 3" in text or "4 bytes in field data" in text


@pytest.mark.parametrize(
    "request_",
    [
        *(b"{", b"{}", PartRequest((-2, 1, 1, 1), False).to_bytes()),
        *(PartRequest((1,) * count, True).to_bytes() for count in (0, 3, 5)),
    ],
)
def test_an_impossible_request_ends_its_connection_only(
    server: PartServer, parts: Texts, request_: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_client, "_TRIES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(PartRequest, "to_bytes", lambda self: request_)
        with following(server.addresses, empty()) as client:
            client.wait(PATIENCE_S)
            assert not client.numbers
    room = empty()
    with following(server.addresses, room) as client:
        client.wait(PATIENCE_S)
        assert values_after(client, room) == parts.values


def test_strangers_keep_nobody_out(server: PartServer, parts: Texts) -> None:
    with contextlib.ExitStack() as held:
        strangers = []
        for _ in range(part_server._MOST_STRANGERS):
            stranger = held.enter_context(socket.create_connection(server.addresses[0]))
            read_exactly(stranger, PROTOCOL.challenge_bytes)
            strangers.append(stranger)
        room = empty()
        client = held.enter_context(following(server.addresses, room))
        client.wait(PATIENCE_S)
        assert values_after(client, room) == parts.values
        assert is_closed_by_peer(strangers[0])  # the oldest


def test_a_slow_stranger_has_no_more_time_for_each_byte() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        with pytest.raises(TimeoutError):
            receive_exactly(ours, 2, Deadline(0.05))
        theirs.send(b"yz")
        assert receive_exactly(ours, 2, Deadline(PATIENCE_S)) == b"yz"


def test_a_silent_stranger_is_dropped(server: PartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_server, "HANDSHAKE_S", 0.05)
    with socket.create_connection(server.addresses[0]) as stranger:
        assert is_closed_by_peer(stranger)


def test_a_server_that_closes_ends_its_connections(parts: Texts) -> None:
    server = PartServer(parts, SECRET, [new_loopback()])
    with socket.create_connection(server.addresses[0]) as stranger:
        read_exactly(stranger, PROTOCOL.challenge_bytes)
        server.close()
        assert is_closed_by_peer(stranger)


def test_the_wait_for_parts_that_change_sooner_than_they_travel_ends(parts: Texts) -> None:
    class Restless(Texts):
        def bytes_of(self, tensor: bytes) -> memoryview:
            found = super().bytes_of(tensor)
            self.values[2] = b"%d" % len(self.sent)
            return found

    restless = Restless(*parts.values)
    with (
        contextlib.closing(PartServer(restless, SECRET, [new_loopback()])) as server,
        following(server.addresses, empty()) as client,
    ):
        client.wait(PATIENCE_S)
        assert not server.should_wait()  # for a client that has never had all


def test_a_client_does_not_follow_for_ever(
    server: PartServer, parts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_client, "_FOLLOW_S", 0.0)
    with following(server.addresses, empty()) as client:
        client.wait(PATIENCE_S)
        until(lambda: not server._clients and not client._thread.is_alive())


def test_no_part_is_put_after_the_end(server: PartServer, parts: Texts) -> None:
    room = empty()
    with following(server.addresses, room) as client:
        client.wait(PATIENCE_S)
        client.stop()
        parts.change(0, b"too late")
        client._take(PartAnswer(4, part=0, version=1, header=(0,)), None)  # type: ignore[arg-type]
        assert room.values[0] == b"first"


def test_a_server_keeps_no_tensors_for_clients_that_are_gone(
    parts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_server, "_KEEP_S", 0.01)
    with contextlib.closing(PartServer(parts, SECRET, [new_loopback()])) as server:
        with following(server.addresses, empty()) as client:
            client.wait(PATIENCE_S)
            assert server._versions.has_tensors
        until(lambda: not server._versions.has_tensors)


def test_a_client_finds_the_next_server(parts: Texts, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when rank 0 is lost."""
    monkeypatch.setattr(part_client, "_PAUSE_S", 0.0)
    servers = [PartServer(parts, SECRET, [new_loopback()]) for _ in range(2)]
    found = iter(servers)
    room = empty()
    client = PartClient(room, SECRET, lambda: PartServerAddresses(next(found).addresses))
    client.wait(PATIENCE_S)
    servers[0].close()
    parts.change(0, b"changed")
    until(lambda: room.values[0] == b"changed")
    assert values_after(client, room) == parts.values
    servers[1].close()


def test_without_a_server_the_wait_ends_at_once() -> None:
    def find() -> PartServerAddresses:
        raise InitError("init: the store is gone")

    client = PartClient(empty(), SECRET, find)
    client.wait(PATIENCE_S)
    assert not client.numbers


def test_without_a_thread_nothing_arrives(
    server: PartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: object) -> None:
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr(threads, "start", refuse)
    with following(server.addresses, empty()) as client:
        client.wait(PATIENCE_S)
        assert not client.numbers
    with pytest.raises(OSError, match="Resource temporarily unavailable"):
        PartServer(new_parts(), SECRET, [new_loopback()])
    with socket.create_connection(server.addresses[0]) as late:
        assert is_closed_by_peer(late)
