"""The proof exchange: it succeeds, and altered, replayed or reflected messages are refused."""

from __future__ import annotations

import pytest

from horovod.rendezvous.base.authentication import PROOF_BYTES
from horovod.rendezvous.base.handshake import (
    Dialer,
    Listener,
    Protocol,
    ProtocolError,
    RefusedError,
)

SECRET = b"s" * 32
PROTOCOL = Protocol(b"test1", statement_bytes=3, answer_bytes=2)
NOT_PROVEN = "does not know the job's secret"


def sides(secret: bytes = SECRET) -> tuple[Listener, Dialer]:
    return Listener(PROTOCOL, SECRET), Dialer(PROTOCOL, secret)


def after_hello(statement: bytes = b"abc") -> tuple[Listener, Dialer]:
    listener, dialer = sides()
    listener.read_hello(dialer.hello(listener.opening, statement))
    return listener, dialer


def test_both_sides_learn_what_the_other_states() -> None:
    listener, dialer = sides()
    hello = dialer.hello(listener.opening, b"abc")
    assert listener.read_hello(hello) == b"abc"
    reply = listener.reply(b"de")
    assert dialer.read_reply(reply) == b"de"
    assert (len(listener.opening), len(hello), len(reply)) == (
        PROTOCOL.challenge_bytes,
        PROTOCOL.hello_bytes,
        PROTOCOL.reply_bytes,
    )


def test_each_connection_and_direction_has_its_own_keys() -> None:
    keys = set()
    for statement in (b"abc", b"abc", b"abd"):
        listener, dialer = after_hello(statement)
        assert listener.send_key == dialer.receive_key
        assert listener.receive_key == dialer.send_key
        assert listener.key(b"seal") == dialer.key(b"seal")
        keys |= {listener.send_key, listener.receive_key, listener.key(b"seal")}
    assert len(keys) == 9
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize("position", range(PROTOCOL.hello_bytes))
def test_a_flipped_bit_in_a_hello_is_never_accepted(position: int) -> None:
    listener, dialer = sides()
    hello = bytearray(dialer.hello(listener.opening, b"abc"))
    hello[position] ^= 1
    with pytest.raises(ProtocolError):
        listener.read_hello(bytes(hello))
    with pytest.raises(ProtocolError):
        listener.key(b"seal")


@pytest.mark.parametrize("position", range(PROTOCOL.reply_bytes))
def test_a_flipped_bit_in_a_reply_is_never_accepted(position: int) -> None:
    listener, dialer = after_hello()
    reply = bytearray(listener.reply(b"de"))
    reply[position] ^= 1
    with pytest.raises(ProtocolError, match=NOT_PROVEN):
        dialer.read_reply(bytes(reply))


@pytest.mark.parametrize("change", [b"", b"x" * 200])
def test_other_lengths_are_refused(change: bytes) -> None:
    listener, dialer = sides()
    with pytest.raises(ProtocolError):
        dialer.hello(listener.opening[:-1] + change)
    hello = dialer.hello(listener.opening, b"abc")
    with pytest.raises(ProtocolError):
        listener.read_hello(hello[:-1] + change)
    listener.read_hello(hello)
    with pytest.raises(ProtocolError):
        dialer.read_reply(listener.reply(b"de")[:-1] + change)


def test_another_secret_is_refused_on_both_sides() -> None:
    listener, dialer = sides(b"t" * 32)
    hello = dialer.hello(listener.opening, b"abc")
    with pytest.raises(ProtocolError, match=NOT_PROVEN):
        listener.read_hello(hello)
    with pytest.raises(RefusedError, match=NOT_PROVEN):
        dialer.read_reply(PROTOCOL.refusal)


def test_a_hello_cannot_be_replayed() -> None:
    listener, dialer = sides()
    hello = dialer.hello(listener.opening, b"abc")
    with pytest.raises(ProtocolError, match=NOT_PROVEN):
        Listener(PROTOCOL, SECRET).read_hello(hello)


def test_a_reply_cannot_be_replayed() -> None:
    reply = after_hello()[0].reply(b"de")
    with pytest.raises(ProtocolError, match=NOT_PROVEN):
        after_hello()[1].read_reply(reply)


def test_a_proof_cannot_be_reflected() -> None:
    listener, dialer = sides()
    proof = dialer.hello(listener.opening, b"abc")[-PROOF_BYTES:]
    with pytest.raises(ProtocolError, match=NOT_PROVEN):
        dialer.read_reply(b"de" + proof)


def test_a_message_of_another_protocol_is_refused() -> None:
    listener, dialer = sides()
    other = Protocol(b"test2", statement_bytes=3, answer_bytes=2)
    with pytest.raises(ProtocolError, match="does not speak this protocol"):
        dialer.hello(Listener(other, SECRET).opening)
    hello = Dialer(other, SECRET).hello(b"test2" + listener.opening[5:], b"abc")
    with pytest.raises(ProtocolError, match="does not speak this protocol"):
        listener.read_hello(hello)
    with pytest.raises(ProtocolError, match=NOT_PROVEN):
        listener.read_hello(b"test1" + hello[5:])
