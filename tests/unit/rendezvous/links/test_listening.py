"""Other peers at the port of a rank: they are refused and reported once, and the rank connects."""

from __future__ import annotations

import contextlib
import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_link import Rank0, dial, hello_to
from raw_sockets import is_closed_by_peer, read_exactly

from horovod.rendezvous.links import listening
from horovod.rendezvous.links.handshake import PROTOCOL, TAKE, Verdict
from horovod.rendezvous.links.plan import Link, Purpose

pytestmark = pytest.mark.usefixtures("one_patient_try")


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
