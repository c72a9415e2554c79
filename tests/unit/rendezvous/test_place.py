"""What makes two processes one place, and ranks a host."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from horovod.rendezvous.capabilities import (
    RankCapabilities,
    decode_card,
    describe_difference,
    encode_card,
    hosts_of,
    split_names,
)
from horovod.rendezvous.identity import host_id as place
from horovod.rendezvous.identity.host_id import HostId, this_place

SCRIPT = "from horovod.rendezvous.identity.host_id import this_place; print(this_place())"


def card(rank: int, host: str = "a", hostname: str = "box", size: int = 4) -> RankCapabilities:
    return RankCapabilities(rank, size, 64, 1, hostname, hostname, HostId(host, "net"))


def spec_of(*unshare: str) -> str:
    words = [*unshare, sys.executable, "-c", SCRIPT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode and unshare:
        pytest.skip(f"{' '.join(unshare)}: {done.stderr.strip()}")
    return done.stdout


def test_processes_of_one_system_share_a_place() -> None:
    assert spec_of() == f"{this_place()}\n"


@pytest.mark.parametrize(
    ("kind", "has_other_network"), [("--net", True), ("--pid", False), ("--uts", False)]
)
def test_another_namespace_is_another_place(kind: str, has_other_network: bool) -> None:
    own = this_place()
    words = ("unshare", kind, *(["--fork"] if kind == "--pid" else []))
    found = spec_of(*words)
    if kind == "--uts":
        assert found == f"{own}\n"  # a name alone separates nothing; see the next test
        return
    assert repr(own.host) not in found
    assert (repr(own.network) in found) is not has_other_network


def test_machines_from_one_snapshot_differ_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    first = this_place()
    here = os.uname()
    other = os.uname_result((here.sysname, "clone", here.release, here.version, here.machine))
    monkeypatch.setattr(os, "uname", lambda: other)
    assert this_place().host != first.host
    assert this_place().network != first.network


def test_without_namespaces_there_is_one_place_and_no_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, "_namespace", lambda kind: "")
    assert this_place().host == this_place().host
    assert this_place().network == ""


def test_hosts_are_groups_in_the_order_of_their_lowest_ranks() -> None:
    places = ["b", "a", "b", "c", "a"]
    cards = [card(rank, host) for rank, host in enumerate(places)]
    assert hosts_of(cards) == ((0, 2), (1, 4), (3,))


def test_names_under_which_there_are_several_hosts() -> None:
    cards = [card(0, "a", "x"), card(1, "b", "x"), card(2, "c", "y"), card(3, "c", "z")]
    assert split_names(cards, hosts_of(cards)) == ["x"]


def test_a_card_travels_whole() -> None:
    own = card(3)
    assert decode_card(encode_card(own)) == own
    assert card(3) != own  # the token


def test_what_differs_is_named() -> None:
    assert describe_difference(card(0), card(1)) is None
    assert describe_difference(card(0), card(1, size=5)) == "rank 1 has size 5, rank 0 has 4"
