"""Worlds of several hosts, which are groups of threads here."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import threading
from collections.abc import Sequence

import pytest
import worlds
from loopback import isolate_links
from worlds import MemoryStore, join_hosts, meshes, outcomes

from horovod.errors import InitError
from horovod.rendezvous.base import protection
from horovod.rendezvous.base.interfaces import Address, Route, routes_between
from horovod.rendezvous.base.membership import SetLinks
from horovod.rendezvous.host import root
from horovod.rendezvous.links import round as link_round
from horovod.rendezvous.mesh import Mesh

NOWHERE = Route("127.0.0.1", 1)


pytestmark = pytest.mark.usefixtures("nothing_leaks")


def size_of(layout: Sequence[Sequence[int]]) -> int:
    return sum(map(len, layout))


def world_of(layout: Sequence[Sequence[int]], **options: object) -> list[Mesh]:
    store = MemoryStore()
    return meshes(size_of(layout), lambda rank: join_hosts(rank, layout, store, **options))  # type: ignore[arg-type]


def close(world: list[Mesh]) -> None:
    for mesh in world:
        mesh.close()


def ends(fd: int) -> tuple[object, object]:
    """Both addresses of a connection, which must be as the engine expects it."""
    assert not os.get_blocking(fd)
    assert not os.get_inheritable(fd)
    duplicate = socket.socket(fileno=os.dup(fd))
    with duplicate:
        assert duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        return duplicate.getsockname(), duplicate.getpeername()


def check_pairs(layout: Sequence[Sequence[int]], links: dict[int, SetLinks]) -> None:
    """The other end of every descriptor is at the planned rank and has the same purpose."""
    host_of = {rank: index for index, host in enumerate(layout) for rank in host}
    here = {}
    there = {}
    for rank, mine in links.items():
        for host, fd, _ in mine.control:
            here["control", 0, host_of[rank], host] = ends(fd)
        for host, channel, fd, _ in mine.data:
            here["data", channel, host_of[rank], host] = ends(fd)
    for (what, channel, own, other), pair in here.items():
        there[what, channel, other, own] = pair[::-1]
    assert here == there
    channels = max(map(len, layout))
    pairs = len(layout) * (len(layout) - 1)
    assert len(here) == pairs * channels + 2 * (len(layout) - 1)


@pytest.mark.parametrize(
    "layout",
    [
        [[0], [1]],
        [[0, 1], [2, 3]],
        [[0, 2], [1, 3]],
        [[0], [1, 2, 3], [4, 5]],
        [[rank] for rank in range(8)],
    ],
)
def test_hosts_are_connected_and_ranks_of_one_share_memory(layout: list[list[int]]) -> None:
    world = world_of(layout)
    for host in layout:
        inodes = {os.fstat(world[rank].region_fd).st_ino for rank in host}
        assert len(inodes) == 1
        for rank in host:
            mesh = world[rank]
            assert mesh.hosts == tuple(map(tuple, layout))
            assert [fd >= 0 for fd in mesh.pidfds] == [
                peer in host and peer != rank for peer in range(len(world))
            ]
            assert [fd >= 0 for fd in mesh.doorbells] == [
                peer in host for peer in range(len(world))
            ]
            assert mesh.pids == (os.getpid(),) * len(world)
    assert len({os.fstat(mesh.region_fd).st_ino for mesh in world}) == len(layout)
    check_pairs(layout, {rank: mesh.links for rank, mesh in enumerate(world)})
    for index, host in enumerate(layout):
        others = tuple(other for other in range(len(layout)) if other != index)
        for rank in host:
            expected = others if rank == host[0] else ()
            assert tuple(peer for peer, _, _ in world[rank].news) == expected
    close(world)


@pytest.mark.parametrize("foreseen_by", [[], [0, 3], [1, 2]])
def test_hosts_that_not_all_ranks_know_of_are_connected(foreseen_by: list[int]) -> None:
    layout = [[0, 1], [2, 3]]
    store = MemoryStore()
    world = meshes(4, lambda rank: join_hosts(rank, layout, store, is_foreseen=rank in foreseen_by))
    check_pairs(layout, {rank: mesh.links for rank, mesh in enumerate(world)})
    close(world)


def test_a_doorbell_is_one_for_all_ranks_of_the_host() -> None:
    world = world_of([[0, 1], [2]])
    os.eventfd_write(world[1].doorbells[0], 5)
    assert os.eventfd_read(world[0].doorbells[0]) == 5
    with pytest.raises(BlockingIOError):
        os.eventfd_read(world[0].doorbells[0])
    assert fcntl.fcntl(world[0].doorbells[1], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    close(world)


def test_names_say_where_each_rank_is() -> None:
    world = world_of([[0, 2], [1]])
    assert {mesh.hostnames for mesh in world} == {("host0", "host1", "host0")}
    close(world)


def test_further_sets_get_their_own_connections() -> None:
    layout = [[0, 1], [2, 3], [4]]
    world = world_of(layout)
    for members in ([1, 2, 3, 4], [0, 4], [1, 2, 3, 4]):
        found = outcomes(5, lambda rank: world[rank].connector.connect_set(7, members))  # noqa: B023
        links = {rank: found[rank] for rank in members}
        assert all(isinstance(each, SetLinks) for each in links.values()), found
        assert [found[rank] for rank in range(5) if rank not in members] == [SetLinks()] * (
            5 - len(members)
        )
        groups = [group for host in layout if (group := [r for r in host if r in members])]
        check_pairs(groups, links)  # type: ignore[arg-type]
        for each in links.values():
            each.close()  # type: ignore[union-attr]
    assert (
        outcomes(5, lambda rank: world[rank].connector.connect_set(8, [2, 3])) == [SetLinks()] * 5
    )
    close(world)


def test_links_notice_a_silent_peer_within_the_timeout() -> None:
    world = world_of([[0], [1]], link_timeout_s=12)
    ((_, fd, _),) = world[0].links.control
    with socket.socket(fileno=os.dup(fd)) as duplicate:

        def option(name: int) -> int:
            return duplicate.getsockopt(socket.IPPROTO_TCP, name)

        assert duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert option(socket.TCP_USER_TIMEOUT) == 10_000
        idle, interval = option(socket.TCP_KEEPIDLE), option(socket.TCP_KEEPINTVL)
        assert (idle, interval, option(socket.TCP_KEEPCNT)) == (4, 2, 3)
    close(world)


def test_only_the_named_interfaces_are_used() -> None:
    world = world_of([[0], [1]], interfaces=["lo"])
    assert all(
        pair[0] in ("127.0.0.1", "::1")
        for mesh in world
        for _, _, fd, _ in mesh.links.data
        for pair in ends(fd)
        if isinstance(pair, tuple)
    )
    close(world)


@pytest.mark.parametrize("wrong", [[0, 1], [0], [1]])
def test_an_interface_that_does_not_exist_fails_all_by_name(wrong: list[int]) -> None:
    store, layout = MemoryStore(), [[0], [1]]

    def join_as(rank: int) -> Mesh:
        return join_hosts(rank, layout, store, interfaces=["none0"] if rank in wrong else [])

    assert all("HOROVOD_GLOO_IFACE='none0'" in str(each) for each in outcomes(2, join_as))


def only(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Every rank listens at this address only."""

    def addresses(interfaces: Sequence[str]) -> list[Address]:
        return [Address(host, 128 if ":" in host else 8, "lo")]

    monkeypatch.setattr("horovod.rendezvous.mesh.local_addresses", addresses)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_families(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    only(monkeypatch, host)
    world = world_of([[0, 1], [2]])
    used = {ends(fd)[0][0] for mesh in world for _, _, fd, _ in mesh.links.data}  # type: ignore[index]
    assert used == {host}
    close(world)


def test_dead_addresses_before_the_good_one_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def routes(*arguments: object) -> list[Route]:
        dead = [Route("192.0.2.77", 9), NOWHERE, Route("240.0.0.1", 9), Route("::1", 1)]
        return [*dead, *routes_between(*arguments)]  # type: ignore[arg-type]

    monkeypatch.setattr(link_round, "routes_between", routes)
    close(world_of([[0, 1], [2]]))


class OneWay:
    """``rank`` cannot connect to other ranks, or they cannot connect to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *blocked: tuple[int, int]) -> None:
        self._blocked = blocked
        self._real = link_round.PeerDial
        monkeypatch.setattr(link_round, "PeerDial", self.dial)

    def dial(self, dialer, links, routes):  # type: ignore[no-untyped-def]
        if (dialer.rank, links[0].peer) in self._blocked:
            routes = [NOWHERE]
        return self._real(dialer, links, routes)


def test_one_direction_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = [[0, 1], [2], [3]]
    OneWay(monkeypatch, (2, 0), (3, 0), (3, 1), (3, 2))
    world = world_of(layout)
    check_pairs(layout, {rank: mesh.links for rank, mesh in enumerate(world)})
    close(world)


def test_without_any_direction_all_ranks_show_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = [[0, 1], [2], [3]]
    OneWay(monkeypatch, (2, 0), (0, 2), (3, 2))
    store = MemoryStore()
    found = outcomes(4, lambda rank: join_hosts(rank, layout, store))
    assert all(isinstance(outcome, InitError) for outcome in found), found
    assert len({str(outcome) for outcome in found}) == 1
    table = str(found[0])
    assert "host1 (rank 2)" in table
    assert "host0 (ranks 0, 1)" in table
    assert table.count("127.0.0.1:1 ") == 3
    assert "Connection refused" in table
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert "host1 (rank 2) host0 (ranks 0, 1) 127.0.0.1:1 Connection refused" in lines
    assert "host0 (ranks 0, 1) host1 (rank 2) 127.0.0.1:1 Connection refused" in lines


def test_a_set_that_cannot_be_connected_leaves_the_world_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = [[0], [1], [2]]
    world = world_of(layout)
    with monkeypatch.context() as patch:
        OneWay(patch, (1, 0), (0, 1))
        found = outcomes(3, lambda rank: world[rank].connector.connect_set(1, [0, 1]))
    assert isinstance(found[0], InitError)
    assert str(found[0]) == str(found[1])
    assert found[2] == SetLinks()
    again = outcomes(3, lambda rank: world[rank].connector.connect_set(1, [0, 1]))
    for links in again:
        assert isinstance(links, SetLinks)
        links.close()
    close(world)


def test_another_build_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    builds: dict[int, str] = {}

    def build() -> str:
        return builds.setdefault(threading.get_ident(), f"horovod {len(builds)}")

    monkeypatch.setattr(link_round, "_build", build)
    store = MemoryStore()
    found = outcomes(2, lambda rank: join_hosts(rank, [[0], [1]], store))
    assert all("all hosts need the same version of horovod" in str(each) for each in found)


@pytest.mark.parametrize("is_foreseen", [True, False])
def test_another_protection_is_refused_by_name(is_foreseen: bool) -> None:
    store = MemoryStore()
    levels = ["control", "encrypted", "encrypted"]
    found = outcomes(
        3,
        lambda rank: join_hosts(
            rank, [[0], [1, 2]], store, protection=levels[rank], is_foreseen=is_foreseen
        ),
    )
    text = "HOROVOD_LINK_PROTECTION is encrypted on rank 1 and control on rank 0"
    assert [str(each) for each in found] == [f"init: {text}; all ranks need the same"] * 3


@pytest.mark.parametrize("is_foreseen", [True, False])
def test_another_number_of_connections_is_refused_by_name(is_foreseen: bool) -> None:
    store = MemoryStore()
    counts = [1, 4]
    found = outcomes(
        2,
        lambda rank: join_hosts(
            rank, [[0], [1]], store, connections=counts[rank], is_foreseen=is_foreseen
        ),
    )
    text = "HOROVOD_LINK_CONNECTIONS is 4 on rank 1 and 1 on rank 0; all ranks need the same"
    assert [str(each) for each in found] == [f"init: {text}"] * 2


@pytest.mark.parametrize("is_foreseen", [True, False])
@pytest.mark.parametrize("lacking", [0, 1])
def test_a_host_without_libcrypto_fails_all_by_name(
    monkeypatch: pytest.MonkeyPatch, lacking: int, is_foreseen: bool
) -> None:
    cipher = protection.find_cipher()
    rank_here = threading.local()

    def find_cipher() -> object:
        is_lacking = rank_here.rank == lacking
        return "libcrypto.so.3: cannot open shared object file" if is_lacking else cipher

    def join_as(rank: int) -> Mesh:
        rank_here.rank = rank
        return join_hosts(rank, [[0], [1], [2]], store, is_foreseen=is_foreseen)

    monkeypatch.setattr(link_round, "find_cipher", find_cipher)
    store = MemoryStore()
    found = outcomes(3, join_as)
    (text,) = {str(each) for each in found}
    assert re.fullmatch(
        r"init: rank \d on host\d finds no libcrypto of OpenSSL 1.1 or 3, which connections "
        r"between hosts need \(libcrypto.so.3: cannot open shared object file\); install .* "
        r"\(libssl3 on Debian .*",
        text,
    )


def test_a_world_of_one_host_needs_no_libcrypto(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise AssertionError("it was looked for")

    monkeypatch.setattr(link_round, "find_cipher", missing)
    close(world_of([[0, 1]]))


@pytest.mark.parametrize("level", ["control", "integrity", "encrypted"])
def test_links_get_seals_as_the_protection_says(level: str) -> None:
    world = world_of([[0, 1], [2]], protection=level)
    for mesh in world:
        data = [seals for _, _, _, seals in mesh.links.data]
        assert data
        assert all((seals is None) == (level == "control") for seals in data)
        assert all(seals for _, _, seals in (*mesh.links.control, *mesh.news))
    close(world)


@pytest.mark.parametrize("is_foreseen", [True, False])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_on_its_host_fails_the_other_hosts(
    monkeypatch: pytest.MonkeyPatch, failing: int, is_foreseen: bool
) -> None:
    rank_here = threading.local()
    real = root.make_region

    def make_region(size_bytes: int) -> int:
        if rank_here.rank == failing:
            raise InitError("init: no memory on this host")
        return real(size_bytes)

    def join_as(rank: int) -> Mesh:
        rank_here.rank = rank
        return join_hosts(rank, [[0], [1, 2]], store, is_foreseen=is_foreseen)

    monkeypatch.setattr(root, "make_region", make_region)
    store = MemoryStore()
    found = outcomes(3, join_as)
    assert [str(outcome) for outcome in found] == ["init: no memory on this host"] * 3


def test_a_host_name_with_separate_memories_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    isolate_links(monkeypatch.setattr)
    close(world_of([[0], [1]]))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(worlds, "HOST_NAME", "box")
    close(world_of([[0, 1], [2]]))
    assert capsys.readouterr().err.count("these are connected by TCP: 0,1 | 2\n") == 1


def test_a_silent_pair_is_reset_at_once() -> None:
    """A closed descriptor at one end ends the connection, since no other one holds it."""
    world = world_of([[0], [1]])
    ((_, fd, _),) = world[1].links.control
    with socket.socket(fileno=fd) as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ((_, peer_fd, _),) = world[0].links.control
    with socket.socket(fileno=os.dup(peer_fd)) as peer:
        peer.settimeout(30)
        with pytest.raises(ConnectionResetError):
            peer.recv(1)
        peer.setblocking(False)
    world[1].__dict__["links"] = SetLinks((), world[1].links.data)
    close(world)
