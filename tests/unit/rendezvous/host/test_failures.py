"""Ranks of one host that cannot connect: all end with the reason and leave nothing open."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from worlds import REGION_BYTES, SECRET, MemoryStore, join, outcomes

from horovod.errors import InitError
from horovod.rendezvous.allgather import StoreAllgather
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.handshake import Dialer
from horovod.rendezvous.base.membership import HostMesh
from horovod.rendezvous.capabilities import RankCapabilities
from horovod.rendezvous.host import handshake
from horovod.rendezvous.host import peer as mesh_peer
from horovod.rendezvous.host import root as mesh_root
from horovod.rendezvous.host.handshake import PROTOCOL, Claims, HostGroup, Kind
from horovod.rendezvous.host.peer import join_mesh
from horovod.rendezvous.host.peer_socket import new_socket, receive
from horovod.rendezvous.host.root import host_mesh
from horovod.rendezvous.identity.host_id import this_host_id
from horovod.rendezvous.mesh import Mesh

pytestmark = pytest.mark.usefixtures("nothing_leaks")


def texts(found: list[Mesh | InitError]) -> list[str]:
    assert all(isinstance(outcome, InitError) for outcome in found), found
    return [str(outcome) for outcome in found]


def post_capabilities(store: MemoryStore, rank: int, size: int) -> None:
    """Post what ``rank`` posts when it arrives."""
    own = RankCapabilities(rank, size, REGION_BYTES, os.getpid(), "here", "here", this_host_id())
    key = "mesh/1/capabilities"
    allgather = StoreAllgather(store, SECRET, key, rank, range(size), Deadline(60))
    allgather.post(own.to_bytes())


def raw_peer(store: MemoryStore, rank: int, size: int) -> socket.socket:
    """A connection to the root that has done its handshake."""
    post_capabilities(store, rank, size)
    connected = new_socket()
    connected.settimeout(60)
    connected.connect(b"\0" + store.get("mesh/1/host/0", 60))
    challenge = handshake.payload_of(receive(connected, []), Kind.CHALLENGE)
    claims = Claims(rank, size, 1, REGION_BYTES)
    hello = Dialer(PROTOCOL, SECRET).hello(challenge, claims.to_bytes())
    connected.send(handshake.message(Kind.HELLO, hello))
    assert receive(connected, [])[0] == Kind.WELCOME
    return connected


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_missing_rank_is_named_on_every_other(size: int) -> None:
    store = MemoryStore()

    def action(rank: int) -> Mesh:
        if rank:
            return join(rank, size, store)
        for other in range(1, size - 1):  # rank 0 counts the time; the others are here before
            store.get(f"mesh/1/capabilities/{other}", 60)
        return join(rank, size, store, timeout_s=0.5)

    found = texts(outcomes(size - 1, action))
    expected = (
        f"init: rank {size - 1} of {size} did not arrive within 0.5 s (HOROVOD_START_TIMEOUT)"
    )
    assert found == [expected] * (size - 1)


def test_several_missing_ranks() -> None:
    store = MemoryStore()
    (text,) = texts(outcomes(1, lambda rank: join(rank, 4, store, timeout_s=0.1)))
    assert text.startswith("init: ranks 1-3 of 4 did not arrive within 0.1 s")


def test_without_rank_0_the_others_say_so() -> None:
    store = MemoryStore()
    found = texts(outcomes(2, lambda rank: join(rank + 1, 3, store, timeout_s=0.1)))
    assert set(found) == {"init: rank 0 of 3 did not arrive within 0.1 s (HOROVOD_START_TIMEOUT)"}


def test_a_rank_0_that_gave_up_refuses_a_late_rank() -> None:
    store = MemoryStore()
    texts(outcomes(1, lambda rank: join(rank, 2, store, timeout_s=0.05)))
    with pytest.raises(InitError, match="rank 1 of 2 did not arrive within"):
        join(1, 2, store)


def test_a_process_with_another_secret_is_refused_and_does_not_disturb() -> None:
    store = MemoryStore()
    secrets = [SECRET, SECRET, SECRET, b"t" * 32]
    ranks = [0, 1, 2, 2]
    was_refused = threading.Event()

    def action(index: int) -> Mesh:
        if index == 2:
            assert was_refused.wait(60)
        try:
            return join(ranks[index], 3, store, secret=secrets[index])
        finally:
            if index == 3:
                was_refused.set()

    found = outcomes(4, action)
    assert "does not know the job's secret" in str(found.pop())
    for mesh in found:
        assert isinstance(mesh, Mesh)
        mesh.close()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"region_bytes": 8192}, "rank 1 has region of bytes 8192, rank 0 has 65536"),
        ({"size": 4}, "rank 1 has size 4, rank 0 has 3"),
    ],
)
def test_a_difference_is_named_on_every_rank(changed: dict[str, int], text: str) -> None:
    store = MemoryStore()

    def action(rank: int) -> Mesh:
        values = {"size": 3, "region_bytes": REGION_BYTES} | (changed if rank == 1 else {})
        return join(rank, values["size"], store, region_bytes=values["region_bytes"])

    found = texts(outcomes(2, action))
    assert all(text in each for each in found)


def test_another_version_is_refused_by_name() -> None:
    root, peer = Claims(0, 2, 1, 64), Claims(1, 2, 1, 64)
    assert root.mismatch(peer, [1]) is None
    for other, text in (
        (Claims(1, 2, 1, 64, version=7), "protocol version 7, rank 0 has 4"),
        (Claims(1, 2, 2, 64), "generation 2, rank 0 has 1"),
        (root, "says it is rank 0; expected rank 1"),
    ):
        assert text in str(root.mismatch(other, [1]))


def test_two_processes_with_one_rank_are_told_apart() -> None:
    store = MemoryStore()
    ranks = [0, 1, 1]
    found = texts(outcomes(3, lambda index: join(ranks[index], 3, store, timeout_s=30)))
    assert any("two processes are rank 1: pids" in text for text in found)


def test_a_peer_that_dies_is_named_at_once() -> None:
    store = MemoryStore()

    def die(rank: int) -> Mesh:
        if rank < 2:
            return join(rank, 4, store)
        post_capabilities(store, 3, 4)
        raw_peer(store, 2, 4).close()
        raise InitError("gone")

    found = texts(outcomes(3, die))
    expected = f"init: rank 2 (pid {os.getpid()}) died or gave up before all ranks had met"
    assert found[0] == expected
    # Rank 1 gets the reason if rank 0 had accepted it by then; else it finds rank 0 gone.
    gone = ("rank 0 closed the connection", "rank 0 died or gave up before this rank arrived")
    assert found[1] == expected or any(text in found[1] for text in gone)


def test_a_peer_that_dies_with_its_descriptors_in_hand_fails_all() -> None:
    store = MemoryStore()

    def die(rank: int) -> Mesh:
        if rank < 2:
            return join(rank, 3, store)
        fds: list[int] = []
        with raw_peer(store, 2, 3) as peer:
            assert receive(peer, fds)[0] == Kind.MEMBERS
        for fd in fds:
            os.close(fd)
        raise InitError("gone")

    found = texts(outcomes(3, die))
    assert all("rank 2 (pid" in text for text in found[:2])


def test_a_peer_that_never_gets_ready_fails_all_after_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    may_end = threading.Event()
    real = mesh_root._Root._expect

    def expect(root: Any, member: Any, kind: Kind | None) -> None:
        real(root, member, kind)
        root._deadline = Deadline(0.5)  # rank 1 is ready; the root waits for rank 2 alone

    monkeypatch.setattr(mesh_root._Root, "_expect", expect)

    def dawdle(rank: int) -> Mesh:
        if rank < 2:
            try:
                return join(rank, 3, store)
            finally:
                may_end.set()
        fds: list[int] = []
        with raw_peer(store, 2, 3) as peer:
            receive(peer, fds)
            assert may_end.wait(60)
        for fd in fds:
            os.close(fd)
        raise InitError("gone")

    found = texts(outcomes(3, dawdle))
    assert all("rank 2 of 3 stopped answering within 0.5 s" in text for text in found[:2])


def test_a_rank_0_that_dies_is_named_at_once() -> None:
    """In its own process, whose socket closes without a message."""
    script = (
        "import os, sys\n"
        "from horovod.rendezvous.host.handshake import Claims\n"
        "from horovod.rendezvous.base.deadlines import Deadline\n"
        "from horovod.rendezvous.host.root import _Root\n"
        "with _Root(Claims(0, 3, 1, 64), [1, 2], b's' * 32, Deadline(60)) as root:\n"
        "    print(root.name, flush=True)\n"
        "    root._admit_one = root._admit\n"
        "    def admit(peer, claims):\n"
        "        root._admit_one(peer, claims)\n"
        "        os._exit(1)\n"
        "    root._admit = admit\n"
        "    root.gather(lambda: None)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=dict(os.environ), text=True
    ) as process:
        assert process.stdout is not None
        store = MemoryStore()
        store.set("mesh/1", process.stdout.readline().strip().encode())
        with pytest.raises(InitError, match="rank 0 closed the connection: it died or gave up"):
            join_mesh(
                HostGroup(
                    Claims(1, 3, 1, 64), [0, 1, 2], False, "mesh/1", store, SECRET, Deadline(60)
                )
            )


def test_a_process_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real, drop = os.geteuid, mesh_root._Root._drop
    store = MemoryStore()

    def drop_and_end(root: Any, peer: Any, reason: str) -> None:
        drop(root, peer, reason)
        root._deadline = Deadline(0.0)

    monkeypatch.setattr(os, "geteuid", lambda: real() + 1)
    monkeypatch.setattr(mesh_root._Root, "_drop", drop_and_end)
    found = texts(outcomes(2, lambda rank: join(rank, 2, store)))
    assert "rank 1 of 2 did not arrive" in found[0]
    assert "belongs to another user" in found[1]


def test_a_silent_process_is_dropped_and_the_ranks_connect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mesh_root, "_HELLO_TIMEOUT_S", 0.2)
    store = MemoryStore()

    def action(rank: int) -> HostMesh:
        claims = Claims(rank, 2, 1, REGION_BYTES)
        if rank == 0:
            return host_mesh(HostGroup(claims, [0, 1], False, "host", store, SECRET, Deadline(60)))
        with new_socket() as silent:
            silent.settimeout(60)
            silent.connect(b"\0" + store.get("host", 60))
            assert receive(silent, [])[0] == Kind.CHALLENGE
            assert receive(silent, []) == b""
        monkeypatch.setattr(mesh_root, "_HELLO_TIMEOUT_S", 60.0)
        return join_mesh(HostGroup(claims, [0, 1], False, "host", store, SECRET, Deadline(60)))

    for mesh in outcomes(2, action):
        assert isinstance(mesh, HostMesh), mesh
        mesh.close()
    assert "no proof of the secret" in capsys.readouterr().err


def test_a_silent_rank_0_ends_the_wait_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something listens at the published name but sends nothing."""
    monkeypatch.setattr(mesh_peer, "_GRACE_S", 0.0)
    store = MemoryStore()
    with new_socket() as mute:
        mute.bind("\0horovod-test-" + os.urandom(8).hex())
        mute.listen(1)
        store.set("mesh/1", mute.getsockname()[1:])
        with pytest.raises(InitError, match=r"rank 0 of 2 did not arrive within 0.2 s"):
            join_mesh(
                HostGroup(
                    Claims(1, 2, 1, 64), [0, 1], False, "mesh/1", store, SECRET, Deadline(0.2)
                )
            )
