"""A worker of an elastic job and the store between it and the driver."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from queue import Queue

import pytest
from loopback import new_loopback
from worlds import SECRET, MemoryStore

from horovod.core.base.rank_info import RankInfo
from horovod.errors import InitError, PeerLostError
from horovod.rendezvous.identity.elastic_client import (
    ElasticClient,
    RemovedError,
    StoreRetry,
    this_client,
)
from horovod.rendezvous.identity.elastic_messages import (
    RankAssignment,
    Ready,
    StateVersion,
    Update,
    WorkerKeys,
    update_key,
)
from horovod.rendezvous.store.channel import StoreUnreachableError
from horovod.rendezvous.store.client import AbandonedError, StoreClient
from horovod.rendezvous.store.server import StoreServer

KEYS = WorkerKeys(5)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def heard() -> Queue[tuple[str, bytes]]:
    return Queue()


@pytest.fixture
def server(heard: Queue[tuple[str, bytes]]) -> Iterator[StoreServer]:
    addresses = [(new_loopback(), 0)]
    with StoreServer(
        SECRET, addresses=addresses, on_set=lambda key, value: heard.put((key, value))
    ) as server:
        yield server


@pytest.fixture
def client(server: StoreServer) -> Iterator[StoreClient]:
    with closing(StoreClient(server.address, SECRET, timeout_s=30)) as client:
        yield client


@pytest.fixture
def waiting(server: StoreServer) -> Iterator[StoreClient]:
    with closing(StoreClient(server.address, SECRET, timeout_s=30)) as client:
        yield client


def test_messages_are_the_same_after_a_transfer() -> None:
    ready = Ready(StateVersion(3, 7), "lost it", (1, 2), True, False, "/a/b")
    assignment = RankAssignment(4, RankInfo(1, 3, 0, 2, 1, 2, "h"), (5, 0, 7), 6, False)
    assert Ready.from_bytes(ready.to_bytes()) == ready
    assert RankAssignment.from_bytes(assignment.to_bytes()) == assignment
    assert Update.from_bytes(Update(17, 2).to_bytes()) == Update(17, 2)


def test_newer_state_versions_are_larger() -> None:
    assert StateVersion(0, 0) < StateVersion(1, 0) < StateVersion(1, 4) < StateVersion(2, 0)
    assert not StateVersion().has_state
    assert StateVersion(1, 0).has_state


def test_an_assignment_makes_a_process_info(store: MemoryStore) -> None:
    assignment = RankAssignment(4, RankInfo(1, 3, 0, 2, 1, 2), (5, 0, 7))
    store.set(KEYS.assignment(1), assignment.to_bytes())
    member = ElasticClient(5)
    found = member.request_assignment(lambda: store)
    identity = found.process_info({"HOROVOD_HOSTNAME": "node"})
    assert (identity.rank, identity.size, identity.hostname) == (1, 3, "node")
    assert (identity.local_rank, identity.local_size) == (0, 2)
    # As the driver said, independent of the ranks' order on the machine.
    assert identity.placed(["node", "node", "other"]) == identity
    assert identity.scope == "world4/"
    assert Ready.from_bytes(store.get(KEYS.ready(1), 0)) == Ready(is_early=True)


def test_a_failure_is_reported_once_with_the_workers_numbers(store: MemoryStore) -> None:
    member = ElasticClient(5)
    for count in (1, 2, 3):
        store.set(
            KEYS.assignment(count), RankAssignment(count, RankInfo(size=3), (5, 0, 7)).to_bytes()
        )
    member.request_assignment(lambda: store)
    member.state_version = StateVersion(1, 4)
    # Without non-members and this worker itself.
    member.note_failure(PeerLostError("rank 2 died", ranks=[0, 2, 3]))
    member.request_assignment(lambda: store)
    assert Ready.from_bytes(store.get(KEYS.ready(2), 0)) == Ready(
        StateVersion(1, 4), "rank 2 died", (7,)
    )
    member.request_assignment(lambda: store)
    assert Ready.from_bytes(store.get(KEYS.ready(3), 0)) == Ready(StateVersion(1, 4))


class InterruptedStore(MemoryStore):
    def get(self, key: str, timeout_s: float) -> bytes:
        raise KeyboardInterrupt


def test_an_interrupted_wait_asks_the_same_question_again(store: MemoryStore) -> None:
    member, interrupted = ElasticClient(5), InterruptedStore()
    with pytest.raises(KeyboardInterrupt):
        member.request_assignment(lambda: interrupted)
    assert list(interrupted._values) == [KEYS.ready(1)]
    store.set(KEYS.assignment(1), RankAssignment(world=9).to_bytes())
    assert member.request_assignment(lambda: store).world == 9
    assert list(store._values) == [KEYS.assignment(1), KEYS.ready(1)]


def test_a_removed_worker_gets_the_reason(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = []
    monkeypatch.setattr("sys.excepthook", lambda *error: others.append(error))
    store.set(
        KEYS.assignment(1),
        RankAssignment(removal="node[1] was removed from the elastic job").to_bytes(),
    )
    with pytest.raises(
        RemovedError, match=r"init: node\[1\] was removed from the elastic job"
    ) as it:
        ElasticClient(5).request_assignment(lambda: store)
    sys.excepthook(it.type, it.value, it.tb)
    assert capsys.readouterr().err == "horovod: init: node[1] was removed from the elastic job\n"
    error = ValueError("another")
    sys.excepthook(ValueError, error, None)
    assert others == [(ValueError, error, None)]


def test_known_updates_are_not_reported(store: MemoryStore) -> None:
    member = ElasticClient(5)
    member.assignment = RankAssignment(updates=1)
    told: Queue[tuple[int, int]] = Queue()
    store.set(update_key(1), Update(10, 1).to_bytes())
    store.set(update_key(2), Update(20, 2).to_bytes())
    member.watch_updates(lambda: store, lambda timestamp, kind: told.put((timestamp, kind)))
    assert told.get(timeout=200) == (20, 2)
    member.assignment = RankAssignment(updates=3)
    store.set(update_key(3), Update(30, 1).to_bytes())
    store.set(update_key(4), Update(40, 3).to_bytes())
    assert told.get(timeout=200) == (40, 3)
    assert member.news() == [Update(40, 3)]
    member.assignment = RankAssignment(updates=4)
    assert member.news() == []


class _HeardError(Exception):
    """Ends the watching for updates, which tries for a minute to connect otherwise."""


def test_updates_are_heard_although_the_first_connections_fail(
    server: StoreServer, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "horovod.rendezvous.identity.elastic_client"
    monkeypatch.setattr(f"{module}._PAUSE_S", 0.001)
    monkeypatch.setattr(f"{module}._in_thread", lambda name, act: act())
    failures = iter([InitError("too slow"), InitError("too slow again")])

    def open_store() -> StoreClient:
        for failure in failures:
            raise failure
        return client

    def tell(*update: int) -> None:
        raise _HeardError(update)

    server.set(update_key(1), Update(10, 1).to_bytes())
    with pytest.raises(_HeardError) as heard:
        ElasticClient(5).watch_updates(open_store, tell)
    assert heard.value.args == ((10, 1),)


def test_members_are_workers_of_elastic_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horovod.rendezvous.identity.elastic_client._clients", {})
    assert this_client({}) is None
    assert this_client({"_HOROVOD_WORKER": "3"}) is None
    environ = {"HOROVOD_ELASTIC": "1", "_HOROVOD_WORKER": "3"}
    member = this_client(environ)
    assert member is not None
    assert this_client(environ) is member
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert this_client(environ) is None


@pytest.mark.parametrize(
    ("told", "limit_s"), [({}, 0), ({"_HOROVOD_RECONNECT_TIMEOUT": "2.5"}, 2.5)]
)
def test_the_driver_says_how_long_it_may_be_away(
    told: dict[str, str], limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horovod.rendezvous.identity.elastic_client._clients", {})
    found = this_client({"HOROVOD_ELASTIC": "1", "_HOROVOD_WORKER": "3", **told})
    assert found is not None
    assert found.retry.limit_s == limit_s


def test_an_abandoned_scope_fails_present_and_later_requests(
    server: StoreServer, waiting: StoreClient, client: StoreClient
) -> None:
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(waiting.get, "mesh/world1/key", 30)
        client.set("mesh/world1/other", b"x")
        client.set("mesh/world10/key", b"kept")
        server.abandon("mesh/world1/", "worker 3 died")
        with pytest.raises(AbandonedError, match="init: worker 3 died"):
            answer.result(timeout=200)
    for ask in (
        lambda: client.get("mesh/world1/other", 30),
        lambda: client.set("mesh/world1/k", b""),
    ):
        with pytest.raises(AbandonedError, match="worker 3 died"):
            ask()
    assert client.get("mesh/world10/key", 30) == b"kept"


def test_the_launcher_reads_and_sets_values(
    server: StoreServer, client: StoreClient, heard: Queue[tuple[str, bytes]]
) -> None:
    with ThreadPoolExecutor() as pool:
        assignment = pool.submit(ElasticClient(5).request_assignment, lambda: client)
        key, value = heard.get(timeout=200)
        assert (key, Ready.from_bytes(value)) == (KEYS.ready(1), Ready(is_early=True))
        server.set(KEYS.assignment(1), RankAssignment(world=2).to_bytes())
        assert assignment.result(timeout=200).world == 2
    server.drop("elastic/worker/5/")
    assert server.found("elastic/worker/5/") == {}  # earlier orders are done
    with pytest.raises(TimeoutError):
        client.get(KEYS.assignment(1), 0)


def test_orders_from_many_threads(server: StoreServer, client: StoreClient) -> None:
    threads = [
        threading.Thread(target=server.set, args=(f"key/{number}", b"%d" % number))
        for number in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [client.get(f"key/{n}", 30) for n in range(50)] == [b"%d" % n for n in range(50)]


class Drivers:
    """Stores that follow each other at one address, each empty, and how clients retry."""

    def __init__(self) -> None:
        self.retry = StoreRetry(30)
        self._earlier = set(threading.enumerate())
        self.heard: Queue[tuple[str, bytes]] = Queue()
        self.server = self._new((new_loopback(), 0))
        self.clients: list[StoreClient] = []

    def _new(self, address: tuple[str, int]) -> StoreServer:
        server = StoreServer(
            SECRET, addresses=[address], on_set=lambda key, value: self.heard.put((key, value))
        )
        server.start()
        return server

    def open_store(self) -> StoreClient:
        self.clients.append(StoreClient(self.server.address, SECRET, timeout_s=30))
        return self.clients[-1]

    def follow(self) -> None:
        self.server.close()
        self.server = self._new(self.server.address)

    def close(self) -> None:
        """Afterwards no client looks for another store."""
        self.retry.limit_s = 0
        self.server.close()
        for thread in set(threading.enumerate()) - self._earlier:
            if thread.name in ("horovod-updates", "horovod-done"):
                thread.join(timeout=500)
                assert not thread.is_alive()
        for client in self.clients:
            client.close()


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    monkeypatch.setattr("horovod.rendezvous.identity.elastic_client._WATCH_S", 0.0)
    with closing(Drivers()) as drivers:
        yield drivers


def test_another_driver_is_asked_again(drivers: Drivers) -> None:
    member = ElasticClient(5, drivers.retry)
    with ThreadPoolExecutor() as pool:
        assignment = pool.submit(member.request_assignment, drivers.open_store)
        first = drivers.heard.get(timeout=200)
        drivers.follow()
        assert drivers.heard.get(timeout=200) == first
        assert first[0] == KEYS.ready(1)
        drivers.server.set(KEYS.assignment(1), RankAssignment(world=2).to_bytes())
        assert assignment.result(timeout=200).world == 2


def test_another_driver_hears_what_is_new_only(drivers: Drivers) -> None:
    member = ElasticClient(5, drivers.retry)
    told: Queue[tuple[int, int]] = Queue()
    drivers.server.set(update_key(1), Update(10, 1).to_bytes())
    member.watch_updates(drivers.open_store, lambda *update: told.put(update))
    assert told.get(timeout=200) == (10, 1)
    member.assignment = RankAssignment(updates=3)
    drivers.follow()
    drivers.server.set(update_key(4), Update(40, 2).to_bytes())
    assert told.get(timeout=200) == (40, 2)


def test_the_end_of_training_waits_for_no_driver(drivers: Drivers) -> None:
    member = ElasticClient(5, drivers.retry)
    drivers.server.close()
    member.note_done(drivers.open_store)
    drivers.follow()
    assert drivers.heard.get(timeout=200) == (KEYS.done, b"")


def test_a_driver_that_does_not_come_back(drivers: Drivers) -> None:
    drivers.server.close()
    for limit_s in (0.0, 0.3):
        with pytest.raises(StoreUnreachableError, match="is its launcher still running"):
            ElasticClient(5, StoreRetry(limit_s)).request_assignment(drivers.open_store)
