"""The variables of srun, and the file with which its ranks find each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.errors import InitError
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.bootstrap import recognise
from horovod.rendezvous.identity.slurm import (
    contact_file,
    identify_by_slurm,
    publish,
    wait_for_contact,
)
from horovod.rendezvous.store.hosted import HostedStore

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
    "HOROVOD_HOSTNAME": "beta",
}
STORE = HostedStore((("10.0.0.5", 4000), ("fd00::5", 4001)), b"s" * 32)


def test_numbers_of_a_step() -> None:
    identity = identify_by_slurm(STEP)
    assert (identity.rank, identity.size) == (3, 7)
    assert (identity.local_rank, identity.local_size) == (1, 2)
    assert (identity.cross_rank, identity.cross_size) == (1, 3)
    assert (identity.hostname, identity.launcher) == ("beta", "srun")
    last = identify_by_slurm(
        STEP | {"SLURM_PROCID": "6", "SLURM_NODEID": "3", "SLURM_LOCALID": "0"}
    )
    assert (last.local_size, last.cross_rank, last.cross_size) == (1, 3, 4)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # a shell that srun started
    ],
)
def test_a_program_without_its_own_step_is_alone(environ: dict[str, str]) -> None:
    assert recognise(environ, 1.0).size == 1
    assert recognise(environ | STEP, 1.0).size == 7


def test_the_launcher_inside_of_a_step_wins() -> None:
    ours = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0"}
    ours |= {"HOROVOD_LOCAL_SIZE": "2", "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1"}
    assert recognise(STEP, 1.0).launcher == "srun"
    assert recognise(STEP | ours, 1.0).launcher == "other"
    ours["_HOROVOD_LAUNCHER"] = "horovodrun"
    assert recognise(STEP | ours, 1.0).launcher == "horovodrun"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_PROCID", "7"),
        ("SLURM_NODEID", "4"),
        ("SLURM_LOCALID", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x3)"),
        ("SLURM_STEP_TASKS_PER_NODE", "7 tasks"),
        ("SLURM_STEP_TASKS_PER_NODE", ""),
    ],
)
def test_wrong_values_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(
        InitError, match=f"{name}='{value}'".replace("(", r"\(").replace(")", r"\)")
    ):
        identify_by_slurm(STEP | {name: value})


def test_ranks_find_the_store_in_a_private_file(tmp_path: Path) -> None:
    environ = STEP | {"HOROVOD_RENDEZVOUS_DIR": str(tmp_path / "shared")}
    path = contact_file(identify_by_slurm(environ), environ)
    publish(STORE, path)
    assert path.parent == tmp_path / "shared"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert wait_for_contact(path, Deadline(1)) == STORE
    assert list(path.parent.iterdir()) == [path]


def test_each_step_and_each_restart_has_its_own_file() -> None:
    changes = ({}, {"SLURM_STEP_ID": "4"}, {"SLURM_JOB_ID": "13"}, {"SLURM_RESTART_COUNT": "1"})
    environs = [STEP | change for change in changes]
    paths = {contact_file(identify_by_slurm(environ), environ) for environ in environs}
    assert len(paths) == len(environs)
    identity = identify_by_slurm(STEP)
    assert contact_file(identity.restricted_to([3, 4]), STEP) not in paths


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "contact"
    publish(STORE, path)
    path.chmod(0o640)
    with pytest.raises(InitError, match=rf"{path} has mode 640; expected 600"):
        wait_for_contact(path, Deadline(1))


def test_a_link_is_refused(tmp_path: Path) -> None:
    publish(STORE, tmp_path / "elsewhere")
    (tmp_path / "contact").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InitError, match="cannot read"):
        wait_for_contact(tmp_path / "contact", Deadline(1))


@pytest.mark.parametrize("message", [b"", b"[]", b'{"addresses": 3}', b"\xff"])
def test_a_file_with_something_else_is_refused(tmp_path: Path, message: bytes) -> None:
    path = tmp_path / "contact"
    path.touch(0o600)
    path.write_bytes(message)
    with pytest.raises(InitError, match=f"init: {path}: "):
        wait_for_contact(path, Deadline(1))


def test_a_folder_that_nodes_do_not_share_is_named(tmp_path: Path) -> None:
    with pytest.raises(InitError, match=r"not written .*within 0\.05 s.*HOROVOD_RENDEZVOUS_DIR"):
        wait_for_contact(tmp_path / "contact", Deadline(0.05))
    (tmp_path / "taken").touch()
    with pytest.raises(InitError, match=r"cannot write .*HOROVOD_RENDEZVOUS_DIR"):
        publish(STORE, tmp_path / "taken" / "contact")


def test_without_a_home_the_folder_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(InitError, match="HOME is not set; HOROVOD_RENDEZVOUS_DIR names"):
        contact_file(identify_by_slurm(STEP), STEP)
