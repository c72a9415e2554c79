"""Proven values in a store that other programs may write to."""

from __future__ import annotations

from contextlib import closing

import pytest
from worlds import SECRET, MemoryStore

from horovod.rendezvous.store import proven_values as proven
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.proven_values import ProvenValues, UnprovenError
from horovod.rendezvous.store.server import StoreServer

VALUE = bytes(range(250))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A store with ``VALUE`` in three chunks of at most 100 bytes under ``key``."""
    monkeypatch.setattr(proven, "_CHUNK_BYTES", 100)
    made = MemoryStore()
    ProvenValues(made, SECRET, b"role").put("key", VALUE)
    return made


def take(store: MemoryStore, key: str = "key", role: bytes = b"role") -> bytes | None:
    return ProvenValues(store, SECRET, role).take(key, 0.0)


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 250])
def test_a_value_is_read_as_it_was_written(store: MemoryStore, length: int) -> None:
    ProvenValues(store, SECRET, b"role").put("other", VALUE[:length])
    assert take(store, "other") == VALUE[:length]
    assert take(store) == VALUE
    assert take(store, "nothing") is None


def test_a_swap_takes_only_what_is_proven(store: MemoryStore) -> None:
    def swap(value: bytes, *wanted: tuple[str, float]) -> list[bytes | None]:
        mine = ProvenValues(store, SECRET, b"role")
        return mine.swap_and_take("other", value, wanted, lambda number, found: found == b"3")

    store.set("other", bytes(99))
    assert swap(b"1", ("key", 0.0)) == [None, VALUE]
    assert swap(b"2", ("other", 0.0), ("nothing", 0.0)) == [b"1", b"2", None]
    assert swap(b"3", ("other", 0.0), ("nothing", 300.0)) == [b"2", b"3"]
    assert swap(b"4", ("nothing", 300.0)) == [b"3"]
    store.set("key", bytes(99))
    for wanted in (["key"], ["key", "other"], ["other", "key"]):
        with pytest.raises(UnprovenError):
            swap(b"5", *((key, 0.0) for key in wanted))
    assert ProvenValues(store, SECRET, b"role").take("other", 0.0) == b"5"


def test_a_swap_asks_for_no_further_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would wait for itself: its request is under way."""
    monkeypatch.setattr(proven, "_CHUNK_BYTES", 100)
    with StoreServer(SECRET) as server:
        address = server.address
        with closing(StoreClient(address, SECRET, timeout_s=60)) as client:
            mine = ProvenValues(client, SECRET, b"role")
            mine.put("key", VALUE)
            found = mine.swap_and_take("key", b"1", [("key", 60.0)], lambda *_: False)
            assert found == [None, b"1"]
            mine.put("other", VALUE)  # of several chunks, but the last one that is wanted
            assert mine.swap_and_take(
                "key", b"2", [("key", 60.0), ("other", 60.0)], lambda *_: False
            ) == [b"1", b"2", VALUE]


def test_every_flipped_bit_is_refused(store: MemoryStore) -> None:
    for key, value in list(store._values.items()):
        for position in range(8 * len(value)):
            flipped = bytearray(value)
            flipped[position // 8] ^= 1 << position % 8
            store.set(key, bytes(flipped))
            with pytest.raises(UnprovenError):
                take(store)
        store.set(key, value)
    assert take(store) == VALUE


def test_a_missing_chunk_is_detected(store: MemoryStore) -> None:
    del store._values["key/1"]
    with pytest.raises(UnprovenError):
        take(store)


def test_chunks_of_another_value_under_the_same_key_are_refused(store: MemoryStore) -> None:
    first = dict(store._values)
    ProvenValues(store, SECRET, b"role").put("key", VALUE[::-1])
    store.set("key/0", first["key/0"])
    with pytest.raises(UnprovenError):
        take(store)


def test_a_value_is_valid_for_its_key_and_role_only(store: MemoryStore) -> None:
    for number in ("", "/0", "/1"):
        store.set(f"key/1{number}", store.get(f"key{number}", 0))
        store.set(f"another{number}", store.get(f"key{number}", 0))
    for taken in ("key/1", "another"):
        with pytest.raises(UnprovenError):
            take(store, taken)
    ProvenValues(store, SECRET, b"role").put("key", VALUE)
    with pytest.raises(UnprovenError):
        take(store, role=b"another role")


@pytest.mark.parametrize("text", [b"", b"short", bytes(35), bytes(36), bytes(200)])
def test_values_without_a_proof_are_refused(store: MemoryStore, text: bytes) -> None:
    store.set("key", text)
    with pytest.raises(UnprovenError):
        take(store)
