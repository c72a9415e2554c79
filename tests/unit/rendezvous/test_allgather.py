"""The all-gather through a store: all ranks get all values, or all the same error."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import pytest
from worlds import SECRET, MemoryStore, outcomes

from horovod.errors import InitError
from horovod.rendezvous import allgather as store_allgather
from horovod.rendezvous.allgather import StoreAllgather, packed, unpacked
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.store import proven_values as proven


def round_of(
    store: MemoryStore,
    rank: int,
    ranks: list[int],
    *,
    secret: bytes = SECRET,
    timeout_s: float = 60,
    is_bootstrap: bool = False,
    check: Callable[[int, bytes], InitError | None] | None = None,
) -> StoreAllgather:
    deadline = Deadline(timeout_s)
    return StoreAllgather(
        store, secret, "key", rank, ranks, deadline, is_bootstrap=is_bootstrap, check=check
    )


@pytest.mark.parametrize("ranks", [[0], [0, 1], [3, 5, 9, 11]])
def test_all_get_all_values_in_order(ranks: list[int]) -> None:
    store = MemoryStore()
    said = [f"from {rank}".encode() + b"\0\xff" for rank in ranks]
    found = outcomes(
        len(ranks), lambda index: round_of(store, ranks[index], ranks).exchange(said[index])
    )
    assert found == [said] * len(ranks)


def test_long_values_are_sent_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proven, "_CHUNK_BYTES", 100)
    store = MemoryStore()
    said = [random.Random(rank).randbytes(100 * rank) + b"end" for rank in range(4)]
    found = outcomes(4, lambda rank: round_of(store, rank, [0, 1, 2, 3]).exchange(said[rank]))
    assert found == [said] * 4
    assert len([key for key in store._values if key.startswith("key/all/")]) > 5


def test_values_that_say_the_same_need_few_bytes() -> None:
    values = [b"rank %d of the same host" % rank for rank in range(1000)]
    assert unpacked(packed(values)) == values
    assert len(packed(values)) < 0.3 * sum(map(len, values))
    assert unpacked(packed([b""] * 1000)) == [b""] * 1000


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (packed([b"a"])[:-3], "they do not end after 5 bytes"),
        (packed([b"a"]) + b"more", "they do not end after 5 bytes"),
        (zlib.compress(b"\0\0"), "2 bytes are left, no length"),
        (zlib.compress(b"\0\0\0\5abcd"), "a value ends at 9 of 8 bytes"),
        (b"[1]", "incorrect header"),
    ],
)
def test_what_is_no_list_of_values(data: bytes, problem: str) -> None:
    with pytest.raises((ValueError, zlib.error), match=problem):
        unpacked(data)


def test_no_more_is_unpacked_than_a_world_may_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_allgather, "_MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="they do not end after 1000 bytes"):
        unpacked(packed([bytes(10_000)]))


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failed_rank_fails_all_at_once(failing: int) -> None:
    store = MemoryStore()

    def action(rank: int) -> list[bytes]:
        mine = round_of(store, rank, [0, 1, 2, 3])
        if rank == failing:
            error = InitError("it is raining", ranks=[7], host="there")
            mine.fail(error)
            raise error
        return mine.exchange(b"")

    # Rank 3 never arrives, and no rank waits for it.
    for outcome in outcomes(3, action):
        assert isinstance(outcome, InitError)
        assert (str(outcome), outcome.ranks, outcome.host) == ("it is raining", (7,), "there")


def test_a_wrong_value_is_refused_when_it_arrives() -> None:
    store = MemoryStore()

    def check(rank: int, value: bytes) -> InitError | None:
        return InitError(f"rank {rank} is odd") if value == b"odd" else None

    def action(rank: int) -> list[bytes]:
        return round_of(store, rank, [0, 1, 2], check=check).exchange([b"even", b"odd"][rank])

    assert [str(outcome) for outcome in outcomes(2, action)] == ["rank 1 is odd"] * 2


def test_all_name_the_missing_ranks() -> None:
    store = MemoryStore()

    def action(rank: int) -> list[bytes]:
        if rank == 0:  # it counts the time; the others are here before
            for other in (1, 2):
                store.get(f"key/{other}", 60)
        timeout_s = 60 if rank else 0.3
        return round_of(store, rank, list(range(5)), timeout_s=timeout_s).exchange(b"")

    found = outcomes(3, action)
    expected = "init: ranks 3, 4 of 5 stopped answering within 0.3 s (HOROVOD_START_TIMEOUT)"
    assert [str(outcome) for outcome in found] == [expected] * 3


def test_without_the_first_rank_the_others_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_allgather, "_GRACE_S", 0.1)
    with pytest.raises(InitError, match=r"rank 0 of 2 stopped answering within 0.1 s"):
        round_of(MemoryStore(), 1, [0, 1], timeout_s=0.1).exchange(b"")


def test_a_value_without_a_proof_is_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    first = round_of(store, 0, [0, 1])
    first.post(b"zero")
    round_of(store, 1, [0, 1], secret=b"t" * 32).post(b"forged")
    assert first.poll(0.0) is None
    assert first.poll(0.0) is None
    assert capsys.readouterr().err.count("ignored a message for 'key/1'") == 1
    round_of(store, 1, [0, 1]).post(b"one")
    assert first.poll(0.0) == [b"zero", b"one"]


def test_a_value_is_valid_under_its_key_only() -> None:
    store = MemoryStore()
    round_of(store, 2, [0, 1, 2]).post(b"two")
    store.set("key/1", store.get("key/2", 0))
    first = round_of(store, 0, [0, 1, 2])
    first.post(b"zero")
    assert first.poll(0.0) is None


def test_a_first_rank_without_the_secret_is_refused() -> None:
    store = MemoryStore()
    forger = proven.ProvenValues(store, b"t" * 32, b"horovod allgather")
    forger.put("key/all", b'+["", ""]')
    with pytest.raises(InitError, match="rank 0 does not know the job's secret"):
        round_of(store, 1, [0, 1]).exchange(b"")


def test_a_late_rank_takes_over_the_time_that_the_first_one_has() -> None:
    store = MemoryStore()

    def action(rank: int) -> float:
        timeout_s = [60.0, 2000.0][rank]
        mine = round_of(store, rank, [0, 1], timeout_s=timeout_s, is_bootstrap=True)
        mine.exchange(b"")
        return mine.deadline.remaining_s()

    found = outcomes(2, action)
    assert all(isinstance(seconds, float) and seconds <= 60 for seconds in found)
