"""Other peers at the port of a rank: they are refused and reported once, and the rank connects."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loopback import new_loopback
from raw_sockets import is_closed_by_peer, read_exactly
from worlds import SECRET

from horovod.rendezvous.base.authentication import PROOF_BYTES
from horovod.rendezvous.base.handshake import Dialer, Listener, ProtocolError
from horovod.rendezvous.base.interfaces import Address, Route
from horovod.rendezvous.links import dialing, listening
from horovod.rendezvous.links.connector import Connector, Stream
from horovod.rendezvous.links.dialing import PeerDial, RankDialer
from horovod.rendezvous.links.handshake import PROTOCOL, TAKE, Claims, Verdict
from horovod.rendezvous.links.listening import LinkListener
from horovod.rendezvous.links.plan import Link, Purpose

CONTEXT = b"c" * 32
LINK_TO_0 = Link(Purpose.DATA, 0, 3, 0)  # as rank 1 sees it
LINK_TO_1 = Link(Purpose.DATA, 1, 3, 1)  # as rank 0 sees it


class Rank0:
    """Rank 0, which expects rank 1, on its own thread."""

    def __init__(self, host: str | None = None, cuts: Sequence[int] = ()) -> None:
        host = host or new_loopback()
        self.connector = CuttingConnector(cuts)
        self.listener = LinkListener(self.connector, 0, SECRET, [Address(host, 8, "lo")])
        self.listener.expect([LINK_TO_1], CONTEXT, {"127.0.0.9"})
        self.route = Route(host, self.listener.listening[0].port)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_over.is_set():
            self.connector.step(0.02)

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(self.route.target[:2], 30, (source, 0))

    def let_in(self, cuts: Sequence[int] = ()) -> None:
        """Rank 1 dials, and only its connection is accepted."""
        dialled = dial(self.route, cuts=cuts)
        assert not dialled.missing, dialled.reasons
        self._stop()
        assert self.listener.is_complete
        (arrived,) = self.listener.arrived.values()
        (made,) = dialled.made.values()
        with arrived.socket, made.socket:
            assert arrived.socket.getpeername() == made.socket.getsockname()
            # No byte after the handshake has been read.
            made.socket.send(b"first")
            arrived.socket.setblocking(True)
            assert arrived.socket.recv(100) == b"first"
        assert (made.keys.send, made.keys.receive) == (arrived.keys.receive, arrived.keys.send)
        assert made.keys.send != made.keys.receive
        self.keys = made.keys

    def _stop(self) -> None:
        self._is_over.set()
        self._thread.join(30)

    def close(self) -> None:
        self._stop()
        for arrived in self.listener.arrived.values():
            arrived.socket.close()
        self.listener.close()
        self.connector.close()


def dial(
    *routes: Route,
    secret: bytes = SECRET,
    rank: int = 1,
    link: Link = LINK_TO_0,
    context: bytes = CONTEXT,
    cuts: Sequence[int] = (),
) -> PeerDial:
    connector = CuttingConnector(cuts)
    dialled = PeerDial(RankDialer(connector, rank, secret, context), [link], routes)
    while not dialled.is_settled:
        dialled.advance()
        connector.step(min(dialled.wait_s(), 0.1))
    connector.close()
    return dialled


class CuttingConnector(Connector):
    """Resets a connection at its n-th piece of a message, for the first connections."""

    def __init__(self, pieces: Sequence[int]) -> None:
        super().__init__()
        self.pieces = list(pieces)
        self._read_so_far: Counter[Stream] = Counter()

    def _read(self, stream: Stream) -> None:
        self._read_so_far[stream] += 1
        if self.pieces and self._read_so_far[stream] == self.pieces[0]:
            self.pieces.pop(0)
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        super()._read(stream)


@pytest.fixture(autouse=True)
def one_patient_try(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TRIES", "_TRIES_WHEN_SILENT", "_TRIES_WHEN_EARLY"):
        monkeypatch.setattr(dialing, name, 1)
    monkeypatch.setattr(dialing, "_ANSWER_TIMEOUT_S", 60.0)
    monkeypatch.setattr(listening, "_HANDSHAKE_TIMEOUT_S", 60.0)


@pytest.fixture
def rank_0(nothing_leaks: None) -> Iterator[Rank0]:
    opened = Rank0()
    yield opened
    opened.close()


def claims_for(route: Route, number: int = 2) -> Claims:
    link = LINK_TO_0
    return Claims(link.purpose, link.channel, 1, 0, route.host, route.port, CONTEXT, number)


def hello_to(connected: socket.socket, route: Route, number: int = 2) -> bytes:
    """The hello of rank 1 on this connection."""
    challenge = read_exactly(connected, PROTOCOL.challenge_bytes)
    return Dialer(PROTOCOL, SECRET).hello(challenge, claims_for(route, number).to_bytes())


def test_a_rank_alone(rank_0: Rank0, capsys: pytest.CaptureFixture[str]) -> None:
    rank_0.let_in()
    assert capsys.readouterr().err == ""


def test_each_connection_has_its_own_hidden_keys() -> None:
    seen = set()
    for _ in range(3):
        rank_0 = Rank0()
        rank_0.let_in()
        rank_0.close()
        seen |= {rank_0.keys.send, rank_0.keys.receive}
        assert repr(rank_0.keys) == "LinkKeys()"
    assert len(seen) == 6
    assert {len(key) for key in seen} == {32}


def test_keys_depend_on_the_claims() -> None:
    claims = claims_for(Route("127.0.0.1", 1))
    listener = Listener(PROTOCOL, SECRET)
    keys = set()
    changes: tuple[dict[str, object], ...] = (
        {},
        {"listener": 2},
        {"channel": 9},
        {"purpose": Purpose.CONTROL},
    )
    for change in changes:
        side = Dialer(PROTOCOL, SECRET)
        side._nonce = b"n" * 32
        side.hello(listener.opening, claims._replace(**change).to_bytes())
        keys |= {side.send_key, side.receive_key}
    assert len(keys) == 2 * len(changes)


@pytest.mark.parametrize("is_dialer", [True, False])
@pytest.mark.parametrize("cuts", [[1], [2], [2, 3], [1] * 5, [2] * 5, [2, *[3] * 4]])
def test_a_connection_that_is_reset_is_dialled_again(
    monkeypatch: pytest.MonkeyPatch, cuts: list[int], is_dialer: bool
) -> None:
    """Challenge, verdict and the answer to TAKE, or magic, hello and TAKE.

    There is no TAKE on the first connection.
    """
    monkeypatch.setattr(dialing, "_STAGGER_S", 0.001)
    rank_0 = Rank0(cuts=() if is_dialer else cuts)
    rank_0.let_in(cuts=cuts if is_dialer else ())
    assert not rank_0.connector.pieces
    rank_0.close()


def test_a_rank_that_is_busy_at_first_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its system accepts connections before it can answer them."""
    monkeypatch.setattr(dialing, "_TRIES_WHEN_SILENT", 8)
    monkeypatch.setattr(dialing, "_ANSWER_TIMEOUT_S", 0.05)
    monkeypatch.setattr(dialing, "_STAGGER_S", 0.001)
    host, connector = new_loopback(), Connector()
    listener = LinkListener(connector, 0, SECRET, [Address(host, 8, "lo")])
    listener.expect([LINK_TO_1], CONTEXT, {"127.0.0.1"})
    route = Route(host, listener.listening[0].port)
    dialled = PeerDial(RankDialer(connector, 1, SECRET, CONTEXT), [LINK_TO_0], [route])
    with monkeypatch.context() as patch:
        patch.setattr(listener, "_accept", lambda _: None)
        while sum(dialled._tries.values()) < 3:
            dialled.advance()
            connector.step(min(dialled.wait_s(), 0.1))
    while dialled.missing:
        dialled.advance()
        connector.step(min(dialled.wait_s(), 0.1))
    assert listener.is_complete
    for made in (*dialled.made.values(), *listener.arrived.values()):
        made.socket.close()
    listener.close()
    connector.close()


def test_a_rank_that_is_dialled_back_too_early_is_dialled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks the store about once a second whether the others could dial it."""
    monkeypatch.setattr(dialing, "_TRIES_WHEN_EARLY", 8)
    monkeypatch.setattr(dialing, "_STAGGER_S", 0.001)
    host, connector = new_loopback(), Connector()
    listener = LinkListener(connector, 0, SECRET, [Address(host, 8, "lo")])
    listener.expect([], CONTEXT, {"127.0.0.1"})
    route = Route(host, listener.listening[0].port)
    dialled = PeerDial(RankDialer(connector, 1, SECRET, CONTEXT), [LINK_TO_0], [route])
    while not dialled.is_settled and sum(dialled._tries.values()) < 6:
        dialled.advance()
        connector.step(min(dialled.wait_s(), 0.1))
    listener.expect([LINK_TO_1], CONTEXT, {"127.0.0.1"})
    while not dialled.is_settled:
        dialled.advance()
        connector.step(min(dialled.wait_s(), 0.1))
    assert not dialled.missing, dialled.reasons
    assert listener.is_complete
    for made in (*dialled.made.values(), *listener.arrived.values()):
        made.socket.close()
    listener.close()
    connector.close()


def test_over_ipv6() -> None:
    rank_0 = Rank0("::1")
    rank_0.let_in()
    rank_0.close()


@pytest.mark.parametrize("text", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 9, b"x" * 100_000])
def test_garbage_is_dropped_unread_and_reported_once(
    rank_0: Rank0, capsys: pytest.CaptureFixture[str], text: bytes
) -> None:
    for _ in range(3):
        with rank_0.connect() as rude:
            with contextlib.suppress(ConnectionError):  # dropped before all was sent
                rude.sendall(text)
            assert is_closed_by_peer(rude)
    rank_0.let_in()
    expected = "dropped a connection from 127.0.0.1: it does not speak this protocol\n"
    assert capsys.readouterr().err == f"horovod: init: {expected}"


def test_scanners_and_half_open_connections(
    rank_0: Rank0, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2, 12):
        with rank_0.connect(f"127.0.0.{number}") as scanner:
            scanner.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", number % 2, 0)
            )
    silent = rank_0.connect()
    rank_0.let_in()
    silent.close()
    assert "127.0.0.9" not in capsys.readouterr().err  # a rank that has found a better address


@pytest.mark.parametrize("is_slow", [False, True])
def test_silence_and_trickles_end_at_the_deadline(
    rank_0: Rank0,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_slow: bool,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(listening, "_HANDSHAKE_TIMEOUT_S", 0.5)
        silent = rank_0.connect()
        read_exactly(silent, PROTOCOL.challenge_bytes)  # it is accepted
    with silent:
        silent.settimeout(0.1)
        sent = PROTOCOL.magic + bytes(1000)
        for byte in sent:
            try:
                if is_slow:
                    silent.send(bytes((byte,)))
                if not silent.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("still connected")
    rank_0.let_in()
    assert "127.0.0.1: no answer within 0.5 s" in capsys.readouterr().err


def test_another_secret(rank_0: Rank0, capsys: pytest.CaptureFixture[str]) -> None:
    dialled = dial(rank_0.route, secret=b"t" * 32)
    assert "it does not know the job's secret" in dialled.reasons[rank_0.route]
    rank_0.let_in()
    assert "it does not know the job's secret" in capsys.readouterr().err


def test_a_hello_cannot_be_replayed(rank_0: Rank0, capsys: pytest.CaptureFixture[str]) -> None:
    with rank_0.connect() as first:
        hello = hello_to(first, rank_0.route)
        first.sendall(hello)
        assert read_exactly(first, PROTOCOL.reply_bytes)[0] == Verdict.WELCOME
    with rank_0.connect() as second:
        second.sendall(hello)
        assert is_closed_by_peer(second)
    rank_0.let_in()
    assert "it does not know the job's secret" in capsys.readouterr().err


def test_many_unauthenticated_peers_make_room_for_a_rank(
    rank_0: Rank0, capsys: pytest.CaptureFixture[str]
) -> None:
    rank_0.listener._unauthenticated.most = 8
    crowd = [rank_0.connect() for _ in range(100)]
    rank_0.let_in()
    for each in crowd:
        each.close()
    assert capsys.readouterr().err.count("too many others have come since") == 1


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"link": Link(Purpose.DATA, 0, 3, 7)}, "another rank of this job is there"),
        ({"context": b"d" * 32}, "in another bootstrap"),
        ({"rank": 2}, "does not expect this rank"),
        ({"link": Link(Purpose.NEWS, 0, 3, 0)}, "does not expect this rank"),
        ({"link": Link(Purpose.DATA, 0, 4, 0)}, "does not expect this rank"),
    ],
)
def test_other_ranks_of_the_job_get_the_reason_and_are_not_reported(
    rank_0: Rank0, capsys: pytest.CaptureFixture[str], details: dict[str, object], reason: str
) -> None:
    dialled = dial(rank_0.route, **details)  # type: ignore[arg-type]
    assert reason in dialled.reasons[rank_0.route]
    rank_0.let_in()
    assert capsys.readouterr().err == ""


def test_a_rank_that_leaves_before_take_may_dial_again(rank_0: Rank0) -> None:
    for _ in range(3):
        with rank_0.connect() as fickle:
            fickle.sendall(hello_to(fickle, rank_0.route))
            assert read_exactly(fickle, PROTOCOL.reply_bytes)[0] == Verdict.WELCOME
    rank_0.let_in()


def test_the_first_connection_is_taken_and_another_one_only_by_take(rank_0: Rank0) -> None:
    for expected in (Verdict.TAKEN, Verdict.WELCOME):
        with rank_0.connect() as fickle:
            fickle.sendall(hello_to(fickle, rank_0.route, number=1))
            assert read_exactly(fickle, PROTOCOL.reply_bytes)[0] == expected
    rank_0.let_in()


def test_a_take_that_comes_after_a_later_one_changes_nothing(rank_0: Rank0) -> None:
    """Its network has held it back, and the dialer has another connection."""
    with rank_0.connect() as stalled, rank_0.connect() as later:
        for number, each in enumerate((stalled, later), 2):
            each.sendall(hello_to(each, rank_0.route, number))
            assert read_exactly(each, PROTOCOL.reply_bytes)[0] == Verdict.WELCOME
        later.sendall(TAKE)
        assert read_exactly(later, 1) == TAKE
        stalled.sendall(TAKE)
        assert is_closed_by_peer(stalled)
        rank_0._stop()
        (arrived,) = rank_0.listener.arrived.values()
        assert arrived.socket.getpeername() == later.getsockname()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(min_size=1, max_size=400), has_magic=st.booleans())
def test_any_bytes(data: bytes, has_magic: bool) -> None:
    rank_0 = Rank0()
    with rank_0.connect() as rude:
        rude.sendall(PROTOCOL.magic * has_magic + data)
        with contextlib.suppress(OSError):  # it is dropped already
            rude.shutdown(socket.SHUT_WR)
        assert is_closed_by_peer(rude)
    rank_0.let_in()
    rank_0.close()


Impostor = Callable[[Callable[[socket.socket], None]], Route]


@pytest.fixture
def impostor() -> Iterator[Impostor]:
    """Listens in place of rank 0 for one connection, and does what the test wants."""
    threads = []

    def listen(act: Callable[[socket.socket], None]) -> Route:
        listener = socket.create_server((new_loopback(), 0))

        def serve() -> None:
            with listener, listener.accept()[0] as connected:
                act(connected)
                is_closed_by_peer(connected)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return Route(*listener.getsockname())

    yield listen
    for thread in threads:
        thread.join(30)


def test_a_listener_that_reflects_our_proof_is_refused(impostor: Impostor) -> None:
    def reflect(connected: socket.socket) -> None:
        connected.sendall(Listener(PROTOCOL, SECRET).opening)
        hello = read_exactly(connected, PROTOCOL.hello_bytes)
        connected.sendall(bytes((Verdict.WELCOME,)) + hello[-PROOF_BYTES:])

    route = impostor(reflect)
    assert dial(route).reasons == {route: "it does not know the job's secret"}


def test_a_listener_that_relays_to_the_right_rank_is_refused(
    rank_0: Rank0, impostor: Impostor
) -> None:
    """The claims name the dialled address, which is not that of the rank."""

    def relay(connected: socket.socket) -> None:
        with rank_0.connect() as onward:
            connected.sendall(read_exactly(onward, PROTOCOL.challenge_bytes))
            hello_bytes = PROTOCOL.hello_bytes
            onward.sendall(read_exactly(connected, hello_bytes))
            connected.sendall(read_exactly(onward, PROTOCOL.reply_bytes))

    route = impostor(relay)
    assert "in another bootstrap" in dial(route).reasons[route]
    rank_0.let_in()


@pytest.mark.parametrize("text", [b"SSH-2.0-OpenSSH\r\n" * 9, b""])
def test_other_services_are_no_ranks(
    impostor: Impostor, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    if not text:
        monkeypatch.setattr(dialing, "_ANSWER_TIMEOUT_S", 0.3)
    route = impostor(lambda connected: connected.sendall(text))
    expected = "does not speak this protocol" if text else "no answer within 0.3 s"
    assert expected in dial(route).reasons[route]


def test_the_first_address_that_authenticates_wins(rank_0: Rank0, impostor: Impostor) -> None:
    mute = impostor(lambda connected: None)
    other = impostor(lambda connected: connected.sendall(b"x" * 100))
    connector = Connector()
    dialer = RankDialer(connector, 1, SECRET, CONTEXT)
    dialled = PeerDial(dialer, [LINK_TO_0], [other, mute, rank_0.route])
    while dialled.missing:
        dialled.advance()
        connector.step(min(dialled.wait_s(), 0.1))
    assert dialled.is_settled
    (made,) = dialled.made.values()
    assert made.socket.getpeername() == rank_0.route.target
    made.socket.close()
    connector.close()


@pytest.mark.parametrize("is_best_right", [True, False])
def test_all_links_are_dialled_at_the_best_address_at_once(
    rank_0: Rank0, impostor: Impostor, is_best_right: bool
) -> None:
    """If another address wins, those dialled ahead are dropped and dialled there."""
    count = 12  # more than tries of addresses at a time
    mine = [Link(Purpose.DATA, 0, channel, 0) for channel in range(3, 3 + count)]
    theirs = [link._replace(peer=1) for link in mine]
    rank_0.listener.expect(theirs, CONTEXT, {"127.0.0.9"})
    routes = [rank_0.route, Route(new_loopback(), 1)]  # the second one is not dialled
    if not is_best_right:
        routes = [impostor(lambda connected: None), rank_0.route]
    connector = Connector()
    dialled = PeerDial(RankDialer(connector, 1, SECRET, CONTEXT), mine, routes)
    dialled.advance()
    assert len(dialled._under_way) == count
    while not dialled.is_settled:
        dialled.advance()
        connector.step(min(dialled.wait_s(), 0.1))
    connector.close()
    assert not dialled.missing
    for made in dialled.made.values():
        assert made.socket.getpeername() == rank_0.route.target
        made.socket.close()
    assert not dialled.reasons


def test_many_dead_addresses_are_tried_a_few_at_a_time(
    rank_0: Rank0, impostor: Impostor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialing, "_MAX_AT_ONCE", 2)
    monkeypatch.setattr(dialing, "_STAGGER_S", 0.0)
    monkeypatch.setattr(dialing, "_CONTACT_S", 0.0)
    monkeypatch.setattr(dialing, "_TRIES", 10)
    monkeypatch.setattr(dialing, "_ANSWER_TIMEOUT_S", 0.2)  # twice as long in each further try
    mute = [impostor(lambda connected: None) for _ in range(5)]
    connector = Connector()
    dialled = PeerDial(
        RankDialer(connector, 1, SECRET, CONTEXT), [LINK_TO_0], [*mute, rank_0.route]
    )
    dialled.advance()
    assert len(dialled._under_way) == 2
    assert dialled.wait_s() > 1  # nothing to do until one of them ends
    while not dialled.is_settled:
        dialled.advance()
        assert len(dialled._under_way) <= 2
        connector.step(min(dialled.wait_s(), 0.1))
    connector.close()
    assert not dialled.missing
    assert set(mute[:4]) <= set(dialled.reasons) <= {*mute, rank_0.route}
    for each in dialled.made.values():
        each.socket.close()


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "fe80::1", "2001:db8::7"])
def test_claims_keep_addresses_of_both_families(host: str) -> None:
    claims = claims_for(Route(host, 1))
    assert Claims.from_bytes(claims.to_bytes()) == claims


def test_unknown_purposes_and_verdicts_are_refused() -> None:
    statement = claims_for(Route("10.0.0.1", 1)).to_bytes()
    with pytest.raises(ProtocolError, match="unknown purpose 9"):
        Claims.from_bytes(b"\x09" + statement[1:])
    assert Verdict.of(b"\x01") == Verdict.WELCOME
    with pytest.raises(ProtocolError, match="its verdict is 9; expected 1 to 5"):
        Verdict.of(b"\x09")


def test_a_rank_connects_among_many_other_peers(rank_0: Rank0) -> None:
    with ThreadPoolExecutor(8) as pool:

        def disturb(number: int) -> None:
            with rank_0.connect() as rude:
                rude.sendall(bytes([number]) * 50)
                is_closed_by_peer(rude)

        disturbing = [pool.submit(disturb, number) for number in range(40)]
        for each in disturbing:
            each.result(30)
        rank_0.let_in()
