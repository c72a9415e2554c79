"""Which environment makes which identity, and which is refused by name."""

from __future__ import annotations

import os

import pytest

from horovod.errors import InitError
from horovod.rendezvous.identity import Identity, identify

HOROVODRUN = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_HOSTNAME": "alpha",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
}


def test_without_a_launcher_it_is_a_world_of_one() -> None:
    assert identify({}) == Identity(0, 1, 0, 1, 0, 1, os.uname().nodename, "none")


def test_bare_rank_variables_of_other_tools_are_not_ours() -> None:
    assert identify({"RANK": "1", "WORLD_SIZE": "2"}).size == 1


def test_horovodrun() -> None:
    assert identify(HOROVODRUN) == Identity(1, 4, 1, 2, 0, 2, "alpha", "horovodrun")


def test_torchrun() -> None:
    assert identify(TORCHRUN) == Identity(1, 2, 1, 2, 0, 1, os.uname().nodename, "torchrun")


def test_horovodrun_goes_before_torchrun() -> None:
    assert identify(TORCHRUN | HOROVODRUN).launcher == "horovodrun"


def test_torchrun_on_several_machines_is_refused_with_a_way_out() -> None:
    environ = TORCHRUN | {"WORLD_SIZE": "4"}
    with pytest.raises(InitError, match=r"4 processes .*WORLD_SIZE.* 2 of them .*--nnodes 1"):
        identify(environ)


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
def test_what_does_not_fit_is_refused_by_name(base: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(InitError, match=rf"{name}='{value[:20]}.*expected an integer"):
        identify(base | {name: value})


@pytest.mark.parametrize("base", [HOROVODRUN, TORCHRUN])
def test_what_is_missing_is_named(base: dict[str, str]) -> None:
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


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_mpirun_is_refused_rather_than_taken_for_many_worlds_of_one(name: str) -> None:
    assert identify({name: "1"}).size == 1
    with pytest.raises(InitError, match=f"mpirun started 4 processes.*{name}.*horovodrun"):
        identify({name: "4"})
    assert identify({name: "4", **TORCHRUN}).size == 2
