"""Codes of objects: what is not the sender's object of this operation is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from horovod.core.object_codes import PICKLING_FAILED, ROW_BYTES, ObjectCodes
from horovod.errors import AlteredObjectError, HorovodInternalError, MismatchError

KEY = bytes(range(32))
MEMBERS = range(3)
PAYLOADS = [b"zero", b"", b"two, and longer"]


def codes_of(rank: int, length: int, **other: object) -> ObjectCodes:
    given = {"key": KEY, "operation": "allgather_object", "name": "x", "process_set_id": 0}
    return ObjectCodes(**{**given, **other}, rank=rank, length=length)  # type: ignore[arg-type]


@dataclass
class Round:
    """One operation of three ranks, none of which was lied to."""

    ranks: list[ObjectCodes]
    rows: bytes
    codes: list[bytes]


def round_of(payloads: Sequence[bytes] = PAYLOADS, **other: object) -> Round:
    ranks = [codes_of(rank, len(payload), **other) for rank, payload in enumerate(payloads)]
    rows = b"".join(codes.row for codes in ranks)
    for codes in ranks:
        codes.receive(rows, MEMBERS)
    made = [codes.code(payload) for codes, payload in zip(ranks, payloads, strict=True)]
    return Round(ranks, rows, made)


def test_all_accept_what_all_have_sent() -> None:
    made = round_of()
    for codes in made.ranks:
        assert codes.lengths() == {0: 4, 1: 0, 2: 15}
        assert codes.failed() == []
        for sender, payload in enumerate(PAYLOADS):
            codes.check(sender, payload, made.codes[sender])


def test_every_flipped_bit_is_refused() -> None:
    made = round_of()
    record = PAYLOADS[2] + made.codes[2]
    for position in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(AlteredObjectError):
            made.ranks[0].check(2, bytes(flipped[:15]), bytes(flipped[15:]))


@pytest.mark.parametrize("cut", [0, 1, 14])
def test_what_is_shorter_or_longer_is_refused(cut: int) -> None:
    made = round_of()
    for payload in (PAYLOADS[2][:cut], PAYLOADS[2] + b"\0"):
        with pytest.raises(AlteredObjectError):
            made.ranks[0].check(2, payload, made.codes[2])
    with pytest.raises(AlteredObjectError):
        made.ranks[0].check(2, PAYLOADS[2], made.codes[2][:cut])


def test_the_error_says_whose_object_it_should_have_been() -> None:
    made = round_of()
    with pytest.raises(HorovodInternalError, match=r"allgather_object 'x': .* of rank 2 ") as told:
        made.ranks[0].check(2, b"another", made.codes[2])
    assert isinstance(told.value, AlteredObjectError)
    assert not isinstance(told.value, MismatchError)  # which elastic training does not retry
    assert (told.value.operation, told.value.name, told.value.sender) == (
        "allgather_object",
        "x",
        2,
    )


def test_what_was_sent_before_is_refused() -> None:
    first, second = round_of(), round_of()
    with pytest.raises(AlteredObjectError):
        second.ranks[0].check(2, PAYLOADS[2], first.codes[2])


def test_a_whole_round_that_was_sent_before_is_refused() -> None:
    first = round_of()
    receiver = codes_of(0, 4)
    with pytest.raises(AlteredObjectError):
        receiver.receive(first.rows, MEMBERS)


def test_rounds_that_are_exchanged_are_refused() -> None:
    """One name twice: the second object in place of the first, although both are authentic."""
    rounds = [round_of(), round_of()]
    for here, there in ((0, 1), (1, 0)):
        with pytest.raises(AlteredObjectError):
            rounds[here].ranks[1].check(2, PAYLOADS[2], rounds[there].codes[2])


def test_an_object_of_another_sender_is_refused() -> None:
    made = round_of([b"same", b"same", b"same"])
    with pytest.raises(AlteredObjectError):
        made.ranks[0].check(1, b"same", made.codes[2])


@pytest.mark.parametrize(
    "other",
    [
        {"key": b"k" * 32},
        {"operation": "broadcast_object"},
        {"name": "y"},
        {"process_set_id": 1},
    ],
    ids=str,
)
def test_another_world_operation_name_or_set_is_refused(other: dict[str, object]) -> None:
    """Even if all announcements are those of this operation."""
    mine = round_of()
    theirs = codes_of(2, len(PAYLOADS[2]), **other)
    theirs.row = mine.ranks[2].row
    theirs.receive(mine.rows, MEMBERS)
    with pytest.raises(AlteredObjectError):
        mine.ranks[0].check(2, PAYLOADS[2], theirs.code(PAYLOADS[2]))
    foreign = codes_of(2, 5, **other).row
    receiver = codes_of(0, 4)
    receiver.receive(receiver.row + foreign, MEMBERS)
    with pytest.raises(AlteredObjectError):
        receiver.length_of(2)


def is_heard(receiver: ObjectCodes, rows: bytes) -> bool:
    try:
        receiver.receive(rows, MEMBERS)
    except AlteredObjectError:
        return False
    return True


def hear_and_check(receiver: ObjectCodes, rows: bytes, made: Round) -> None:
    again = codes_of(0, 4)
    again.row = receiver.row
    again.receive(rows, MEMBERS)
    again.check(2, PAYLOADS[2], made.codes[2])


def test_every_flipped_bit_of_an_announcement_is_refused() -> None:
    """A flipped rank makes a row of nobody's; whatever is flipped, no code fits any more."""
    made = round_of()
    for position in range(8 * len(made.rows)):
        rows = bytearray(made.rows)
        rows[position // 8] ^= 1 << position % 8
        receiver = codes_of(0, 4)
        receiver.row = made.ranks[0].row
        if position // 8 // ROW_BYTES == 2 and is_heard(receiver, bytes(rows)):
            with pytest.raises(AlteredObjectError):
                receiver.length_of(2)
        with pytest.raises(AlteredObjectError):
            hear_and_check(receiver, bytes(rows), made)


@pytest.mark.parametrize("length", [-1, -(2**63), 2**40, 2**63 - 1])
def test_an_absurd_length_is_refused_before_it_is_used(length: int) -> None:
    forged = bytearray(codes_of(2, 15).row)
    forged[4:12] = length.to_bytes(8, "big", signed=True)
    receiver = codes_of(0, 4)
    receiver.receive(receiver.row + bytes(forged), MEMBERS)
    with pytest.raises(AlteredObjectError):
        receiver.length_of(2)
    with pytest.raises(AlteredObjectError):
        receiver.lengths()
    if length < 0:
        with pytest.raises(AlteredObjectError):
            receiver.failed()


def test_ranks_that_failed_and_ranks_that_are_not_there() -> None:
    receiver = codes_of(0, 4)
    receiver.receive(codes_of(2, PICKLING_FAILED).row + receiver.row, MEMBERS)
    assert receiver.failed() == [2]
    assert receiver.length_of(1) == 0


@pytest.mark.parametrize(("rank", "named"), [(1, 0), (7, 0), (2**32 - 1, 0)])
def test_a_row_of_no_member_or_of_one_twice_is_refused(rank: int, named: int) -> None:
    receiver = codes_of(1, 4)
    stranger = rank.to_bytes(4, "big") + codes_of(0, 4).row[4:]
    with pytest.raises(AlteredObjectError) as told:
        receiver.receive(stranger + receiver.row, MEMBERS)
    assert told.value.sender == named
