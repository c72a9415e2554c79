"""Which processes have the same host id, and which ranks form a host."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from horovod.rendezvous.capabilities import RankCapabilities, hosts_of, split_names
from horovod.rendezvous.identity import host_id
from horovod.rendezvous.identity.host_id import HostId, this_host_id

SCRIPT = "from horovod.rendezvous.identity.host_id import this_host_id; print(this_host_id())"


def rank_on(rank: int, host: str = "a", hostname: str = "box", size: int = 4) -> RankCapabilities:
    return RankCapabilities(rank, size, 64, 1, hostname, hostname, HostId(host, "net"))


def host_id_in(*unshare: str) -> str:
    words = [*unshare, sys.executable, "-c", SCRIPT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500)
    if done.returncode and unshare:
        pytest.skip(f"{' '.join(unshare)}: {done.stderr.strip()}")
    return done.stdout


def test_processes_of_one_system_share_a_host_id() -> None:
    assert host_id_in() == f"{this_host_id()}\n"


@pytest.mark.parametrize(
    ("kind", "has_other_network"), [("--net", True), ("--pid", False), ("--uts", False)]
)
def test_another_namespace_is_another_host(kind: str, has_other_network: bool) -> None:
    own = this_host_id()
    words = ("unshare", kind, *(["--fork"] if kind == "--pid" else []))
    found = host_id_in(*words)
    if kind == "--uts":
        assert found == f"{own}\n"  # a name alone separates nothing; see the next test
        return
    assert repr(own.host) not in found
    assert (repr(own.network) in found) is not has_other_network


def test_machines_from_one_snapshot_differ_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    first = this_host_id()
    here = os.uname()
    other = os.uname_result((here.sysname, "clone", here.release, here.version, here.machine))
    monkeypatch.setattr(os, "uname", lambda: other)
    assert this_host_id().host != first.host
    assert this_host_id().network != first.network


def test_without_namespaces_there_is_one_host_and_no_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_id, "_namespace", lambda kind: "")
    assert this_host_id().host == this_host_id().host
    assert this_host_id().network == ""


def test_hosts_are_groups_in_the_order_of_their_lowest_ranks() -> None:
    names = ["b", "a", "b", "c", "a"]
    ranks = [rank_on(rank, name) for rank, name in enumerate(names)]
    assert hosts_of(ranks) == ((0, 2), (1, 4), (3,))


def test_names_under_which_there_are_several_hosts() -> None:
    ranks = [rank_on(0, "a", "x"), rank_on(1, "b", "x"), rank_on(2, "c", "y"), rank_on(3, "c", "z")]
    assert split_names(ranks, hosts_of(ranks)) == ["x"]


def test_capabilities_are_the_same_after_a_transfer() -> None:
    own = rank_on(3)
    assert RankCapabilities.from_bytes(own.to_bytes()) == own
    assert rank_on(3) != own  # the token


def test_a_difference_is_named() -> None:
    assert rank_on(0).mismatch(rank_on(1)) is None
    assert rank_on(0).mismatch(rank_on(1, size=5)) == "rank 1 has size 5, rank 0 has 4"
