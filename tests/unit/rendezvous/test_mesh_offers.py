"""Ranks whose first message to ranks of other hosts is bad, and what ends their dials."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from loopback import new_loopback
from worlds import SECRET, MemoryStore, join_hosts, outcomes

from horovod.errors import InitError
from horovod.rendezvous import mesh
from horovod.rendezvous.allgather import StoreAllgather
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.host import root
from horovod.rendezvous.links import dialing
from horovod.rendezvous.links import round as link_round
from horovod.rendezvous.mesh import Mesh

pytestmark = pytest.mark.usefixtures("nothing_leaks")

LAYOUT = [[0], [1], [2]]
Change = Callable[[bytes, dict[int, bytes]], bytes]


def altered(field: str, value: object) -> Change:
    def change(offer: bytes, others: dict[int, bytes]) -> bytes:
        return json.dumps({**json.loads(offer), field: value}).encode()

    return change


ADDRESS = {"host": "10.0.0.1", "bits": 24, "interface": "eth0", "scope": 0, "speed": 0}
# Each with whether the world forms all the same.
CHANGES: dict[str, tuple[Change, bool]] = {
    "none": (lambda offer, _: b"", True),
    "several lines": (lambda offer, _: b"\n\n" + offer + b"\n", True),
    "nowhere": (altered("listening", []), True),
    "no JSON": (lambda offer, _: b"\n{", False),
    "no text": (lambda offer, _: b"\xff\xfe\n\0\n", False),
    "a list": (lambda offer, _: b"[" * 100_000, False),
    "not a list": (altered("listening", {}), False),
    "not an address": (
        altered("listening", [{"address": ADDRESS | {"host": 7}, "port": 1}]),
        False,
    ),
    "an interface": (
        altered("listening", [{"address": ADDRESS | {"host": "fe80::1%none0"}, "port": 1}]),
        False,
    ),
    "a wrong port": (altered("listening", [{"address": ADDRESS, "port": 65536}]), False),
    "a wrong number": (altered("connections", -1), False),
    "another field": (altered("more", 1), False),
}


class Offers:
    """Rank ``changing`` makes another offer than its own."""

    def __init__(self, patch: pytest.MonkeyPatch, changing: int, change: Change) -> None:
        self._changing = changing
        self._change = change
        self._made: dict[int, bytes] = {}
        self._rank = threading.local()
        self._all_made = threading.Barrier(len(LAYOUT))
        self._real = mesh.offer_of
        patch.setattr(mesh, "offer_of", self._offer_of)

    def join(self, rank: int, store: MemoryStore) -> Mesh:
        self._rank.here = rank
        return join_hosts(rank, LAYOUT, store)

    def _offer_of(self, *arguments: object) -> bytes:
        offer = self._made[self._rank.here] = self._real(*arguments)  # type: ignore[arg-type]
        self._all_made.wait(60)
        if self._rank.here != self._changing:
            return offer
        return self._change(offer, self._made)


@pytest.mark.parametrize("changing", [0, 1, 2])
@pytest.mark.parametrize("name", CHANGES)
def test_every_rank_ends_alike_whatever_one_offers(
    monkeypatch: pytest.MonkeyPatch, changing: int, name: str
) -> None:
    change, is_good = CHANGES[name]
    offers, store = Offers(monkeypatch, changing, change), MemoryStore()
    found = outcomes(3, lambda rank: offers.join(rank, store))
    for each in found:
        if is_good:
            assert isinstance(each, Mesh), each
            each.close()
        else:
            assert isinstance(each, InitError), each
            assert f"from rank {changing}" in str(each)
            assert each.ranks == (changing,)


@pytest.mark.parametrize(("changing", "copied"), [(1, 2), (0, 2), (2, 1)])
def test_a_rank_with_the_offer_of_another_one_dials_back(
    monkeypatch: pytest.MonkeyPatch, changing: int, copied: int
) -> None:
    monkeypatch.setattr(dialing, "_STAGGER_S", 0.01)
    offers = Offers(monkeypatch, changing, lambda _, made: made[copied])
    store = MemoryStore()
    for each in outcomes(3, lambda rank: offers.join(rank, store)):
        assert isinstance(each, Mesh), each
        each.close()


@pytest.mark.parametrize("raised", [ImportError("no psutil"), PermissionError("/proc/net/dev")])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_cannot_list_its_addresses_tells_the_others(
    monkeypatch: pytest.MonkeyPatch, failing: int, raised: Exception
) -> None:
    rank_here = threading.local()
    real = mesh.local_addresses

    def local_addresses(interfaces: Sequence[str]) -> list[mesh.Address]:
        if rank_here.rank == failing:
            raise raised
        return real(interfaces)

    def join(rank: int) -> Mesh:
        rank_here.rank = rank
        try:
            return join_hosts(rank, LAYOUT, store)
        except type(raised) as error:
            raise InitError(f"rank {rank} gave up: {error!r}") from None

    monkeypatch.setattr(mesh, "local_addresses", local_addresses)
    store = MemoryStore()
    for each in outcomes(3, join):
        assert f"rank {failing} gave up: {raised!r}" in str(each)


def test_a_rank_that_does_not_fit_ends_all_that_listen_already() -> None:
    """Nothing stays open."""
    store = MemoryStore()
    key = "mesh/1/capabilities"
    StoreAllgather(store, SECRET, key, 2, range(3), Deadline(60)).post(b"{}\n{}")
    for each in outcomes(2, lambda rank: join_hosts(rank, LAYOUT, store)):
        assert re.search("a message 'capabilities' has .* in field rank", str(each))


def test_a_failure_ends_the_dials_to_silent_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 fails on its host. Rank 2 gets no answer of rank 0, whose system has accepted."""
    rank_here = threading.local()
    real_region, real_dial = root.make_region, link_round.PeerDial

    def make_region(size_bytes: int) -> int:
        if rank_here.rank == 1:
            raise InitError("init: no memory on this host")
        return real_region(size_bytes)

    def dial(dialer, links, routes):  # type: ignore[no-untyped-def]
        return real_dial(dialer, links, [dialing.Route(*silent.getsockname())])

    def join(rank: int) -> Mesh:
        rank_here.rank = rank
        return join_hosts(rank, LAYOUT, store, timeout_s=600)

    monkeypatch.setattr(root, "make_region", make_region)
    monkeypatch.setattr(link_round, "PeerDial", dial)
    monkeypatch.setattr(link_round, "_LOOK_S", 0.5)
    store, start_s = MemoryStore(), time.monotonic()
    with socket.create_server((new_loopback(), 0)) as silent:
        found = outcomes(3, join)
    assert [str(each) for each in found] == ["init: no memory on this host"] * 3
    assert time.monotonic() - start_s < 60  # dials alone may take 200 s
