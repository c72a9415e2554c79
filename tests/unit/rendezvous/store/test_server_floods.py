"""More connections than descriptors: how many unauthenticated peers get, and how many are left."""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from loopback import new_loopback

from horovod.rendezvous.base.admission import most_unauthenticated
from horovod.rendezvous.base.descriptors import Reserve, raise_limit, raised_limit
from horovod.rendezvous.store import server as store_server
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

SECRET = b"s" * 32
LIMIT = 256
_AS_MANY_AS_ALLOWED = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
"""
_CROWD = """
import socket, sys
crowd = []
for _ in range(int(sys.argv[3])):
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex((sys.argv[1], int(sys.argv[2])))
    crowd.append(made)
print("here", flush=True)
sys.stdin.read()
"""
_CHURN = """
import collections, socket, sys, threading
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
crowd = collections.deque(maxlen=300)
print("here", flush=True)
while not over.is_set():
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex((sys.argv[1], int(sys.argv[2])))
    crowd.append(made)
"""


@pytest.fixture
def few() -> Iterator[None]:
    """A soft limit of ``LIMIT`` descriptors for this process."""
    gc.collect()  # garbage of earlier tests must not free descriptors during this one
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def crowd(server: StoreServer, count: int, program: str = _CROWD) -> Iterator[None]:
    """Another process with ``count`` silent connections to ``server``."""
    host, port = server.address
    words = [sys.executable, "-c", _AS_MANY_AS_ALLOWED + program, host, str(port), str(count)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == b"here\n"
            yield
        finally:
            process.stdin.close()
            assert process.wait(60) == 0


def new_server(report: Callable[[str], None]) -> StoreServer:
    return StoreServer(SECRET, addresses=[(new_loopback(), 0)], report=report)


def client_of(server: StoreServer) -> contextlib.closing[StoreClient]:
    return contextlib.closing(StoreClient(server.address, SECRET, timeout_s=60))


@contextlib.contextmanager
def all_that_are_left() -> Iterator[list[int]]:
    """Every descriptor that this process can still open; closed at the end."""
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield taken
    finally:
        close(taken)


def close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


@pytest.mark.usefixtures("few")
def test_unauthenticated_peers_get_a_quarter_of_the_descriptors() -> None:
    assert most_unauthenticated() == LIMIT // 4
    lines: queue.Queue[str] = queue.Queue()
    with new_server(report=lines.put) as server, client_of(server) as before:
        before.set("key", b"value")
        with crowd(server, 500):
            assert "64 others have none either" in lines.get(timeout=60)
            assert len(server._unauthenticated) <= LIMIT // 4
            with all_that_are_left() as left:
                assert len(left) > LIMIT // 3
            assert before.get("key", 60) == b"value"
            with client_of(server) as after:
                assert after.get("key", 60) == b"value"
    assert lines.empty()


@pytest.mark.usefixtures("few")
def test_a_client_connects_during_a_flood() -> None:
    with (
        new_server(report=lambda text: None) as server,
        crowd(server, 0, _CHURN),
        crowd(server, 0, _CHURN),
    ):
        for number in range(4):
            with client_of(server) as client:
                client.set(f"key/{number}", b"value")
                assert client.get(f"key/{number}", 60) == b"value"


@pytest.mark.usefixtures("few")
def test_without_descriptors_the_listener_pauses_and_clients_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_server, "_PAUSE_S", 0.02)
    lines: queue.Queue[str] = queue.Queue()
    pauses = threading.Semaphore(0)
    with new_server(report=lines.put) as server, client_of(server) as client:
        pause, accept, turns = server._pause, server._accept, []

        def counted_pause(reason: str) -> None:
            pause(reason)
            pauses.release()

        monkeypatch.setattr(server, "_pause", counted_pause)
        monkeypatch.setattr(server, "_accept", lambda each: (turns.append(each), accept(each)))
        waiting = [socket.socket() for _ in range(3)]
        with all_that_are_left():
            for each in waiting:
                each.connect(server.address)
            for _ in range(3):  # two whole pauses
                assert pauses.acquire(timeout=60)
            client.set("key", b"value")
            assert client.get("key", 60) == b"value"
            assert len(turns) < 100
        for each in waiting:
            each.settimeout(60)
            assert each.recv(8) == b"hvdstor3"
            each.close()
        assert "new connections have to wait: [Errno 24]" in lines.get(timeout=60)


@pytest.mark.usefixtures("few")
def test_no_peer_gets_the_last_descriptors() -> None:
    with new_server(report=lambda text: None) as server, all_that_are_left() as taken:
        # By number, since a descriptor that this process has inherited may be among the last ones.
        own = [fd for fd in taken if fd >= LIMIT - LIMIT // 8]
        taken[:] = [fd for fd in taken if fd not in own]
        count = len(own)
        close(own)
        with crowd(server, 100), all_that_are_left() as left:
            # Two are the pipes to the crowd. After each pause the server accepts one connection and
            # closes it; on a slow machine it may hold this one now.
            assert len(left) >= count - 3
            assert len(server._unauthenticated) == 0


@pytest.mark.usefixtures("few")
def test_a_reserve_keeps_its_descriptors() -> None:
    reserve = Reserve(5)
    with all_that_are_left():
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        reserve.release()
        with all_that_are_left() as own:
            assert len(own) == 5
        reserve.release()


@pytest.mark.usefixtures("few")
def test_the_limit_is_raised_for_this_process_and_put_back() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with raised_limit() as before:
        assert before == LIMIT
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised == (min(hard, 65_536), hard)
        assert raise_limit() == raised[0]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (LIMIT, hard)
