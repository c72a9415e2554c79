"""Records: any change on the way is an error."""

from __future__ import annotations

import pytest

from horovod.launch.wire.handshake import AgentHandshake, LauncherHandshake
from horovod.rendezvous.base.records import RecordError, Records

ONE, OTHER = bytes(32), bytes(range(32))
SENT = [b"first", b"", b"the third one"]


def ends() -> tuple[Records, Records]:
    return Records(ONE, OTHER), Records(OTHER, ONE)


def sealed() -> list[bytes]:
    sender, _ = ends()
    return [sender.sealed(data) for data in SENT]


def test_all_arrives_in_pieces_of_any_size() -> None:
    stream = b"".join(sealed())
    for size in (1, 7, 36, 1000):
        _, receiver = ends()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [data for piece in pieces for data in receiver.opened(piece)] == SENT


def test_both_directions_have_keys_of_their_own() -> None:
    sender, _ = ends()
    with pytest.raises(RecordError):
        list(sender.opened(sender.sealed(b"mirrored")))


def test_every_flipped_bit_is_an_error_and_nobody_waits() -> None:
    stream = b"".join(sealed())
    for position in range(8 * len(stream)):
        flipped = bytearray(stream)
        flipped[position // 8] ^= 1 << position % 8
        _, receiver = ends()
        found = []
        with pytest.raises(RecordError, match=r"record \d of this connection"):
            found += receiver.opened(bytes(flipped))
        assert found in (SENT[:0], SENT[:1], SENT[:2])


@pytest.mark.parametrize("order", [(0, 0), (1,), (1, 0), (0, 2), (2, 1, 0), (0, 1, 2, 2)])
def test_repeated_missing_and_exchanged_records_are_errors(order: tuple[int, ...]) -> None:
    records = sealed()
    _, receiver = ends()
    with pytest.raises(RecordError):
        list(receiver.opened(b"".join(records[index] for index in order)))


def test_records_of_another_connection_are_errors() -> None:
    secret = bytes(range(32))
    streams = []
    for _ in range(2):
        agent, launcher = AgentHandshake(secret), LauncherHandshake(secret)
        launcher.feed(agent.feed(launcher.feed(agent.opening)))
        streams.append((launcher.records(), agent.records()))
    (launcher_here, guest_here), (_, guest_there) = streams
    record = launcher_here.sealed(b"order")
    with pytest.raises(RecordError):
        list(guest_there.opened(record))
    assert list(guest_here.opened(record)) == [b"order"]
    assert list(launcher_here.opened(guest_here.sealed(b"report"))) == [b"report"]


def test_nothing_is_opened_after_an_error() -> None:
    sender, receiver = ends()
    first, second = sender.sealed(b"first"), sender.sealed(b"second")
    with pytest.raises(RecordError):
        list(receiver.opened(b"\1" + first[1:]))
    with pytest.raises(RecordError):
        list(receiver.opened(second))


def test_a_record_that_is_too_long_is_an_error_before_it_is_there() -> None:
    sender, _ = ends()
    receiver = Records(OTHER, ONE, most_bytes=8)
    record = sender.sealed(bytes(8)) + sender.sealed(bytes(9))
    opened = receiver.opened(record[:-40])
    assert next(opened) == bytes(8)
    with pytest.raises(RecordError, match="a record of 9 bytes, at most 8 fit"):
        next(opened)
