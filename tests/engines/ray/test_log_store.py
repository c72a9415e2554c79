"""Workers' logs reach the caller unchanged or not at all; needs no cluster."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from horovod.ray.elastic_job import LogSender, LogStore
from horovod.rendezvous.store.client import StoreClient

Arrived = SimpleQueue[bytes | None]


class Canary:
    """An object that creates ``path`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str, int], int], tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


@pytest.fixture
def arrived() -> Arrived:
    return SimpleQueue()


@pytest.fixture
def store(arrived: Arrived, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogStore]:
    with LogStore("127.0.0.1", arrived) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


def test_items_arrive_in_order(store: LogStore, arrived: Arrived) -> None:
    one, other = LogSender(store.address), pickle.loads(pickle.dumps(LogSender(store.address)))
    for number in range(5):
        one.put({"one": number})
        other.put({"other": number})
    found = [pickle.loads(arrived.get_nowait() or b"") for _ in range(10)]
    assert found == [{name: number} for number in range(5) for name in ("one", "other")]


def test_one_that_is_too_long_does_not_end_the_rest(store: LogStore, arrived: Arrived) -> None:
    sender = LogSender(store.address)
    sender.put({"number": 1})
    with pytest.raises(ValueError, match="bytes"):
        sender.put({"long": "x" * 100_000})
    sender.put({"number": 2})
    assert [pickle.loads(arrived.get_nowait() or b"") for _ in range(2)] == [
        {"number": 1},
        {"number": 2},
    ]


def test_no_secret_is_in_what_a_call_carries(store: LogStore) -> None:
    (secret,) = store.environment.values()
    assert bytes.fromhex(secret) not in pickle.dumps(LogSender(store.address))
    assert secret.encode() not in pickle.dumps(LogSender(store.address))


def test_a_value_without_a_code_or_with_a_used_code_is_ignored(
    store: LogStore, arrived: Arrived, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The writer knows the secret of the connection, as after a failure of its authentication."""
    witness = tmp_path / "witness"
    forged = pickle.dumps(Canary(witness))
    (secret,) = store.environment.values()
    seen: list[tuple[str, bytes]] = []
    take = store._take
    store._server._on_set = lambda key, value: (seen.append((key, value)), take(key, value))[1]
    LogSender(store.address).put({"genuine": 1})
    assert pickle.loads(arrived.get_nowait() or b"") == {"genuine": 1}
    client = StoreClient(store.address, bytes.fromhex(secret), timeout_s=30)
    key, genuine = seen[0]
    for name, value in [
        ("log/mine", forged),
        ("log/mine", bytes(32) + forged),
        (key, genuine),
        ("log/another", genuine),
        (key, genuine[:32] + forged),
    ]:
        client.set(name, value)
    client.close()
    with pytest.raises(Empty):
        arrived.get_nowait()
    assert len(caplog.records) == 5
    assert not witness.exists()
