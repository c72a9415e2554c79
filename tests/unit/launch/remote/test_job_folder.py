"""The folders of jobs with an id: private, and each one process's alone."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from horovod.launch.remote.job_folder import (
    DRIVER,
    JobFolder,
    JobFolderTakenError,
    check_job_id,
    check_private,
    connect_to_agent,
    host_folder_path,
    is_same_user,
    job_folder_path,
    listen_at,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return job_folder_path("fred", DRIVER, {"XDG_STATE_HOME": str(tmp_path)})


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    jobs = tmp_path / ".local" / "state" / "horovod" / "jobs"
    assert job_folder_path("fred", DRIVER, {}) == jobs / "fred" / "driver"
    assert job_folder_path("fred", DRIVER, {"XDG_STATE_HOME": "here"}) == jobs / "fred" / "driver"
    state = {"XDG_STATE_HOME": "/s"}
    assert host_folder_path("fred", "../a", state) == Path("/s/horovod/jobs/fred/host-..%2Fa")


@pytest.mark.parametrize("job_id", ["a", "Fred_2.1-x", "0" * 64])
def test_names_of_jobs(job_id: str) -> None:
    assert check_job_id(job_id) == job_id


@pytest.mark.parametrize("job_id", ["", ".", "..", "a/b", "-a", "a b", "ä", "0" * 65])
def test_what_is_no_name(job_id: str) -> None:
    with pytest.raises(ValueError, match="expected a name of at most 64"):
        check_job_id(job_id)


def test_one_process_has_it_at_a_time(path: Path) -> None:
    with closing(JobFolder(path)):
        for private in (path, path.parent, path.parent.parent, path.parent.parent.parent):
            check_private(private)
        with pytest.raises(JobFolderTakenError, match=f"process {os.getpid()} on "):
            JobFolder(path)
    JobFolder(path).close()


def test_the_last_one_removes_the_job(path: Path) -> None:
    driver, agent = JobFolder(path), JobFolder(path.with_name("host-a"))
    (path / "state").touch()
    driver.remove()
    assert [each.name for each in path.parent.iterdir()] == ["host-a"]
    agent.remove()
    assert list(path.parent.parent.iterdir()) == []
    JobFolder(path).remove()


def test_a_lock_that_is_removed_meanwhile_is_none(path: Path) -> None:
    old = JobFolder(path)
    (path / "lock").unlink()
    with closing(JobFolder(path)), pytest.raises(JobFolderTakenError):
        JobFolder(path)
    old.close()


@pytest.mark.parametrize("name", ["horovod", "horovod/jobs", "horovod/jobs/fred/driver"])
def test_what_is_open_to_others_is_refused(tmp_path: Path, path: Path, name: str) -> None:
    JobFolder(path).close()
    (tmp_path / name).chmod(0o750)
    with pytest.raises(PermissionError, match=r"is open to others \(mode 750\)"):
        JobFolder(path)


def test_a_link_is_refused(tmp_path: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, mode=0o700)
    for private in (path.parent, path.parent.parent, path.parent.parent.parent):
        private.chmod(0o700)
    path.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="expected no symbolic link"):
        JobFolder(path)


def test_what_belongs_to_others_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    JobFolder(path).close()
    monkeypatch.setattr("os.getuid", lambda: 4242)
    with pytest.raises(PermissionError, match=r"belongs to user .*, expected 4242"):
        JobFolder(path)


def test_a_socket_in_a_folder_with_a_long_name(tmp_path: Path) -> None:
    folder = job_folder_path("f" * 64, "h" * 100, {"XDG_STATE_HOME": str(tmp_path)})
    JobFolder(folder).close()
    assert connect_to_agent(folder) is None
    before = os.getcwd()
    with listen_at(folder) as listener:
        connected = connect_to_agent(folder)
        assert connected is not None
        with connected, listener.accept()[0] as accepted:
            assert is_same_user(connected)
            assert is_same_user(accepted)
    assert os.getcwd() == before
    assert connect_to_agent(folder) is None  # a file, and no process behind it
    listen_at(folder).close()


def test_another_user_at_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        user = os.getuid()
        monkeypatch.setattr("os.getuid", lambda: user + 1)
        assert not is_same_user(ours)
