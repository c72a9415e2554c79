"""The mesh of one host: what each rank has afterwards."""

from __future__ import annotations

import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from worlds import REGION_BYTES, SECRET, MemoryStore, join, meshes

from horovod.errors import InitError
from horovod.rendezvous.base.membership import SetLinks
from horovod.rendezvous.host import peer_socket
from horovod.rendezvous.host import root as mesh_root
from horovod.rendezvous.host import root as region
from horovod.rendezvous.mesh import Mesh
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

pytestmark = pytest.mark.usefixtures("nothing_leaks")


def close(world: list[Mesh]) -> None:
    for mesh in world:
        mesh.close()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_all_share_one_region(size: int) -> None:
    store = MemoryStore()
    world = meshes(size, lambda rank: join(rank, size, store))
    views = [mmap.mmap(mesh.region_fd, REGION_BYTES) for mesh in world]
    for rank, view in enumerate(views):
        view[rank] = rank + 1
    expected = bytes(range(1, size + 1)) + b"\0"
    assert all(view[: size + 1] == expected for view in views)
    for view in views:
        view.close()
    close(world)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_rank_has_a_pidfd_of_each_other_rank(size: int) -> None:
    store = MemoryStore()
    world = meshes(size, lambda rank: join(rank, size, store))
    for rank, mesh in enumerate(world):
        assert mesh.pids == (os.getpid(),) * size
        assert [fd == -1 for fd in mesh.pidfds] == [other == rank for other in range(size)]
        for fd in (mesh.region_fd, *mesh.pidfds):
            assert fd == -1 or not os.get_inheritable(fd)
    close(world)


def test_many_descriptors_are_sent_in_several_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_socket, "MAX_FDS_PER_MESSAGE", 2)
    monkeypatch.setattr(mesh_root, "_MAX_FDS_IN_FLIGHT", 14)  # two ranks at a time
    store = MemoryStore()
    world = meshes(6, lambda rank: join(rank, 6, store))
    assert all(sorted(mesh.pidfds)[0] == -1 and len(set(mesh.pidfds)) == 6 for mesh in world)
    close(world)


def test_the_region_cannot_be_cut_short() -> None:
    store = MemoryStore()
    (mesh,) = meshes(1, lambda rank: join(rank, 1, store))
    with pytest.raises(PermissionError):
        os.ftruncate(mesh.region_fd, 0)
    close([mesh])


def test_without_memfd_it_is_an_unlinked_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(errno.EPERM, "refused")

    monkeypatch.setattr(os, "memfd_create", refuse)
    before = set(os.listdir("/dev/shm"))
    store = MemoryStore()
    world = meshes(3, lambda rank: join(rank, 3, store))
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "horovod" in name}
    assert {os.fstat(mesh.region_fd).st_size for mesh in world} == {REGION_BYTES}
    assert len({os.fstat(mesh.region_fd).st_ino for mesh in world}) == 1
    close(world)


def test_without_any_shared_memory_both_reasons_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(errno.EPERM, "refused")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(region, "_SHM", "/nonexistent")
    with pytest.raises(InitError, match=r"memfd_create: .*; file in /nonexistent: .*No such"):
        join(0, 1, MemoryStore())


def test_without_pidfds_there_is_still_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_socket, "open_pidfd", lambda pid: -1)
    store = MemoryStore()
    world = meshes(3, lambda rank: join(rank, 3, store))
    assert {mesh.pidfds for mesh in world} == {(-1, -1, -1)}
    close(world)


def test_open_pidfd_tells_missing_support_from_a_missing_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert peer_socket.open_pidfd(0) == -1

    def unsupported(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(os, "pidfd_open", unsupported)
    assert peer_socket.open_pidfd(os.getpid()) == -1
    monkeypatch.delattr(os, "pidfd_open")
    assert peer_socket.open_pidfd(os.getpid()) == -1


def test_fifty_rounds_leave_nothing() -> None:
    store = MemoryStore()
    for generation in range(1, 51):
        close(meshes(3, lambda rank: join(rank, 3, store, generation=generation)))  # noqa: B023


def test_one_host_needs_no_doorbells_and_no_links() -> None:
    store = MemoryStore()
    world = meshes(2, lambda rank: join(rank, 2, store))
    for mesh in world:
        assert mesh.hosts == ((0, 1),)
        assert (mesh.doorbells, mesh.news, mesh.links) == ((), (), SetLinks())
        assert mesh.connector.connect_set(1, [0, 1]) == SetLinks()
    close(world)


def test_a_second_process_of_a_rank_is_refused_before_rank_0_comes() -> None:
    two = "two processes are rank 1"
    with StoreServer(SECRET) as server, ExitStack() as clients, ThreadPoolExecutor(2) as pool:

        def client() -> StoreClient:
            made = StoreClient(server.address, SECRET, timeout_s=60)
            return clients.enter_context(closing(made))

        first = pool.submit(join, 1, 2, client())
        client().get("mesh/1/capabilities/1", 60)
        with pytest.raises(InitError, match=two):
            join(1, 2, client())
        for outcome in (pool.submit(join, 0, 2, client()), first):
            with pytest.raises(InitError, match=two):
                outcome.result(timeout=200)
