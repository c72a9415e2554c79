"""The identity from an environment, and refused variables by name."""

from __future__ import annotations

import os
import re

import pytest

from horovod.errors import InitError
from horovod.rendezvous.identity.environment import ProcessInfo, identify

OTHERS = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_HOSTNAME": "alpha",
}
HOROVODRUN = {**OTHERS, "_HOROVOD_LAUNCHER": "horovodrun"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
}


def test_without_a_launcher_it_is_a_world_of_one() -> None:
    assert identify({}) == ProcessInfo(0, 1, 0, 1, 0, 1, os.uname().nodename, "none")


def test_bare_rank_variables_of_other_tools_are_not_ours() -> None:
    assert identify({"RANK": "1", "WORLD_SIZE": "2"}).size == 1


def test_horovodrun() -> None:
    assert identify(HOROVODRUN) == ProcessInfo(1, 4, 1, 2, 0, 2, "alpha", "horovodrun")


def test_a_launcher_of_others() -> None:
    identity = identify(OTHERS)
    assert identity == ProcessInfo(1, 4, 1, 2, 0, 2, "alpha", "other")
    assert identity.placed(["x"] * 4) == identity


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("HOROVOD_RANK", "4", "HOROVOD_RANK='4': expected an integer from 0 to 3"),
        ("HOROVOD_ELASTIC", "1", "HOROVOD_ELASTIC=1 comes from a launcher"),
    ],
)
def test_wrong_variables_of_other_launchers(name: str, value: str, text: str) -> None:
    with pytest.raises(InitError, match=re.escape(text)):
        identify({**OTHERS, name: value})


def test_a_server_without_a_rank_is_no_world_of_one() -> None:
    with pytest.raises(InitError, match="HOROVOD_SIZE is not set"):
        identify({"HOROVOD_GLOO_RENDEZVOUS_PORT": "1234"})


def test_an_elastic_worker_may_have_another_rank_than_slot() -> None:
    alone = {**HOROVODRUN, "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0"}
    with pytest.raises(InitError, match="both are the same"):
        identify(alone)
    assert identify({**alone, "HOROVOD_ELASTIC": "1"}).rank == 1


def test_torchrun() -> None:
    expected = ProcessInfo(1, 2, 1, 2, 0, 1, os.uname().nodename, "torchrun", group="0")
    assert identify(TORCHRUN) == expected


def test_horovodrun_goes_before_torchrun() -> None:
    assert identify(TORCHRUN | HOROVODRUN).launcher == "horovodrun"


def test_torchrun_on_several_machines() -> None:
    environ = TORCHRUN | {"WORLD_SIZE": "4", "RANK": "3", "GROUP_RANK": "1"}
    identity = identify(environ).placed(["0", "0", "1", "1"])
    assert (identity.rank, identity.size) == (3, 4)
    assert (identity.local_rank, identity.local_size) == (1, 2)
    assert (identity.cross_rank, identity.cross_size) == (1, 2)


def test_cross_numbers_count_machines_with_that_local_rank() -> None:
    nodes = ["a", "b", "b", "c", "c"]
    found = []
    for rank, node in enumerate(nodes):
        identity = ProcessInfo(rank, 5, 0, 5, 0, 1, node, "torchrun", group=node).placed(nodes)
        found.append((identity.local_rank, identity.local_size))
        found[-1] += (identity.cross_rank, identity.cross_size)
    assert found == [(0, 1, 0, 3), (0, 2, 1, 3), (1, 2, 0, 2), (0, 2, 2, 3), (1, 2, 1, 2)]


def test_positions_from_our_launcher_stay() -> None:
    identity = identify(HOROVODRUN)
    assert identity.placed(["x"] * 4) == identity


def test_a_part_of_the_job_is_numbered_anew_on_several_machines() -> None:
    hostnames = ["alpha", "alpha", "beta", "beta"]
    ranks = [3, 1, 2]
    for position, rank in enumerate(ranks):
        environ = HOROVODRUN | {"HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank % 2)}
        environ |= {"HOROVOD_HOSTNAME": hostnames[rank], "HOROVOD_CROSS_RANK": str(rank // 2)}
        part = identify(environ).restricted_to(ranks)
        assert (part.rank, part.size, part.scope) == (position, 3, "3-1-2/")
        placed = part.placed([hostnames[rank] for rank in ranks])
        local, cross = [((0, 2), (0, 2)), ((0, 1), (1, 2)), ((1, 2), (0, 1))][position]
        assert (placed.local_rank, placed.local_size) == local
        assert (placed.cross_rank, placed.cross_size) == cross


@pytest.mark.parametrize(
    ("base", "name", "value"),
    [
        (HOROVODRUN, "HOROVOD_RANK", "4"),
        (HOROVODRUN, "HOROVOD_RANK", "-1"),
        (HOROVODRUN, "HOROVOD_RANK", "one"),
        (HOROVODRUN, "HOROVOD_RANK", ""),
        (HOROVODRUN, "HOROVOD_RANK", " 1"),
        (HOROVODRUN, "HOROVOD_RANK", "\u0661"),
        (HOROVODRUN, "HOROVOD_SIZE", "0"),
        (HOROVODRUN, "HOROVOD_SIZE", "9" * 5000),
        (HOROVODRUN, "HOROVOD_LOCAL_RANK", "2"),
        (HOROVODRUN, "HOROVOD_LOCAL_SIZE", "5"),
        (HOROVODRUN, "HOROVOD_CROSS_RANK", "2"),
        (HOROVODRUN, "HOROVOD_CROSS_SIZE", "1.0"),
        (TORCHRUN, "RANK", "2"),
        (TORCHRUN, "WORLD_SIZE", "x"),
        (TORCHRUN, "LOCAL_RANK", "-0"),
        (TORCHRUN, "LOCAL_WORLD_SIZE", "3"),
    ],
)
def test_wrong_values_are_refused_by_name(base: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(InitError, match=rf"{name}='{value[:20]}.*expected an integer"):
        identify(base | {name: value})


@pytest.mark.parametrize("base", [OTHERS, TORCHRUN])
def test_missing_variables_are_named(base: dict[str, str]) -> None:
    for name in base:
        if name in ("HOROVOD_HOSTNAME", "TORCHELASTIC_RUN_ID", "GROUP_RANK"):
            continue
        rest = {key: value for key, value in base.items() if key != name}
        with pytest.raises(InitError, match=f"{name} is not set"):
            identify(rest)


def test_on_one_host_both_ranks_must_agree() -> None:
    environ = HOROVODRUN | {"HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0"}
    with pytest.raises(InitError, match="HOROVOD_LOCAL_RANK=0 but HOROVOD_RANK=1"):
        identify(environ)
