"""Rank 1 dials rank 0: again where that helps, at the right address, and never another peer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from loopback import new_loopback
from one_link import CONTEXT, LINK_TO_0, LINK_TO_1, Rank0, dial
from raw_sockets import is_closed_by_peer, read_exactly
from worlds import SECRET

from horovod.rendezvous.base.authentication import PROOF_BYTES
from horovod.rendezvous.base.handshake import Listener
from horovod.rendezvous.base.interfaces import Address, Route
from horovod.rendezvous.links import dialing
from horovod.rendezvous.links.connector import Connector
from horovod.rendezvous.links.dialing import PeerDial, RankDialer
from horovod.rendezvous.links.handshake import PROTOCOL, Verdict
from horovod.rendezvous.links.listening import LinkListener
from horovod.rendezvous.links.plan import Link, Purpose

pytestmark = pytest.mark.usefixtures("one_patient_try")


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
