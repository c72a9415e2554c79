"""Where users name a place, only what is ours is read, replaced and removed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from foreign_files import NOBODY, contents, fill, lost, mark_job

import horovod.numpy as hvd
from horovod.autotune.knobs import Surroundings, knobs_for, values_of
from horovod.autotune.log import SampleLog
from horovod.autotune.search import Result
from horovod.core.base.own_files import (
    OwnFolder,
    follow,
    home_folder,
    open_own,
    open_regular,
    read_own,
    replacing,
)
from horovod.elastic import ObjectState
from horovod.errors import InitError
from horovod.launch.experiment.command import free_number, take_number
from horovod.launch.jobs.report import JobReport
from horovod.launch.model.argument_checks import writable_file
from horovod.launch.model.job_plan import JobOutcome
from horovod.launch.remote.job_folder import DRIVER, JobFolder, job_folder_path, listen_at
from horovod.launch.workers.logs import Logs
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.identity.slurm import publish, wait_for_contact
from horovod.rendezvous.store.hosted import HostedStore
from horovod.settings import Settings

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder full of a user's files."""
    fill(tmp_path / "place", tmp_path / "outside")
    return tmp_path / "place"


@pytest.fixture
def nothing_is_lost(place: Path, tmp_path: Path) -> Callable[[], None]:
    before = contents(tmp_path)

    def check() -> None:
        assert lost(before, tmp_path) == []

    return check


def test_what_is_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "queue")
    assert read_own(tmp_path / "file", 4) == b"text"
    with pytest.raises(OSError, match=r"file: 4 bytes, expected at most 3"):
        read_own(tmp_path / "file", 3)
    for name in ("link", "queue", "."):
        with pytest.raises(OSError, match=rf"{tmp_path}.*(link|expected a regular file)"):
            read_own(tmp_path / name, 10)
    with pytest.raises(OSError, match="queue"):
        open_own(tmp_path / "queue", os.O_WRONLY)
    os.close(open_regular(tmp_path / "link", os.O_RDONLY))
    with pytest.raises(OSError, match="/dev/null: expected a regular file"):
        open_regular("/dev/null", os.O_WRONLY)


def test_a_file_is_replaced_at_once_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with contextlib.suppress(RuntimeError), replacing(tmp_path / "file") as file:
        file.write(b"new")
        raise RuntimeError
    assert (tmp_path / "file").read_text() == "old"
    assert contents(tmp_path).keys() == {"file"}
    with OwnFolder(tmp_path) as folder:
        folder.replace("file", b"new")
        folder.replace("other", b"too")
    assert (tmp_path / "file").read_text() == "new"
    for kind in ("link", "folder", "queue"):
        getattr(os, {"link": "symlink", "folder": "mkdir", "queue": "mkfifo"}[kind])(
            *(("file",) if kind == "link" else ()), tmp_path / kind
        )
        with pytest.raises(OSError, match="regular file"), replacing(tmp_path / kind) as file:
            pass
    assert contents(tmp_path).keys() == {"file", "other", "link", "folder", "queue"}


@as_root
def test_what_belongs_to_others_is_not_own(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").touch()
    for path in (tmp_path / "theirs", tmp_path / "theirs" / "file"):
        os.chown(path, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match=f"file belongs to user {NOBODY}, expected 0"):
        read_own(tmp_path / "theirs" / "file", 10)
    with pytest.raises(PermissionError, match=f"theirs belongs to user {NOBODY}, expected 0"):
        OwnFolder(tmp_path / "theirs")
    with OwnFolder(tmp_path) as folder:
        folder.remove("theirs/file")
    assert (tmp_path / "theirs" / "file").exists()


def record(environ: dict[str, str]) -> None:
    """A world of one, which writes recordings, under this environment alone."""
    program = (
        "import numpy, horovod.numpy as hvd\nhvd.init()\nhvd.allreduce(numpy.ones(3), name='x')\n"
        "print(hvd.dump_recorder())\nhvd.shutdown()\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environ}, check=True, timeout=500
    )


def old_job(folder: Path) -> Path:
    """Of a job that ended well, long ago: the first to go."""
    mark_job(folder)
    (folder / "rank-0-pid-1-world-1-end.hvdrec").write_text("events")
    os.utime(folder, (1, 1))
    return folder


def test_recordings_among_a_users_files(place: Path, nothing_is_lost: Callable[[], None]) -> None:
    for number in range(20):
        old_job(place / f"job-{number}")
    record({"HOROVOD_RECORDER_DIR": str(place), "HOROVOD_JOB_ID": "own"})
    nothing_is_lost()
    assert len(list(place.glob("job-*"))) == 15
    assert len(list((place / "own").glob("*.hvdrec"))) == 2


def test_a_job_with_the_name_of_a_users_folder_writes_nothing(
    place: Path, nothing_is_lost: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_RECORDER_DIR", str(place))
    for name, why in (("deep", "holds something else than recordings"), ("link", "link")):
        monkeypatch.setenv("HOROVOD_JOB_ID", name)
        hvd.init()
        try:
            with pytest.raises(OSError, match=rf"{place}/{name}.*{why}|{name}: Not a directory"):
                hvd.dump_recorder()
        finally:
            hvd.shutdown()
        nothing_is_lost()
    assert not list(Path(place / "deep").glob(".horovod*"))


@as_root
def test_recordings_of_others_in_a_shared_folder(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for number in range(40):
        folder = old_job(shared / f"theirs-{number}")
        for path in (*folder.iterdir(), folder):
            os.chown(path, NOBODY, NOBODY)
        # Ours inside, by its name; and what others may write to.
        os.chown(old_job(shared / f"mixed-{number}"), NOBODY, NOBODY)
        old_job(shared / f"open-{number}").chmod(0o777)
    before = contents(shared)
    record({"HOROVOD_RECORDER_DIR": str(shared), "HOROVOD_JOB_ID": "own"})
    assert lost(before, shared) == []


def test_a_recording_under_a_name_of_the_users(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "queue")
    (tmp_path / "link").symlink_to("queue")
    part = tmp_path / f"own.hvdrec.{os.getpid()}.part"
    part.write_text("words")
    hvd.init()
    try:
        for name in ("queue", "link"):
            with pytest.raises(OSError, match=rf"{name}: expected a regular file"):
                hvd.dump_recorder(tmp_path / name)
        hvd.dump_recorder(tmp_path / "own.hvdrec")
    finally:
        hvd.shutdown()
    assert part.read_text() == "words"
    assert contents(tmp_path).keys() == {"queue", "link", part.name, "own.hvdrec"}


def test_a_job_folder_loses_what_is_ours_alone(tmp_path: Path) -> None:
    path = job_folder_path("fred", DRIVER, {"XDG_STATE_HOME": str(tmp_path)})
    home = JobFolder(path)
    for name in ("state", "log", f".state.{'0' * 16}.part"):
        (path / name).write_text("ours")
    fill(path / "mine", tmp_path / "outside")
    (path / "thesis.txt").write_text("words")
    (path / "socket").write_text("no socket")
    before = contents(path)
    with pytest.raises(OSError, match="in use"):
        listen_at(path)
    home.remove()
    assert sorted(lost(before, path)) == [f".state.{'0' * 16}.part", "lock", "log", "state"]
    with closing(JobFolder(path)):
        pass


@pytest.mark.parametrize("number", [0, 3])
def test_output_of_ranks_among_a_users_files(
    place: Path, nothing_is_lost: Callable[[], None], number: int
) -> None:
    (place / "rank.3").symlink_to(place.parent / "outside")
    with pytest.raises(FileExistsError, match=rf"{place}/rank.{number} holds something else"):
        Logs(place, [1, number])
    nothing_is_lost()
    assert not os.path.lexists(place.parent / "outside" / ".horovod-output")
    # What an earlier job has made is written anew, but for what is no regular file there.
    (place / "rank.1" / "stderr").unlink()
    os.mkfifo(place / "rank.1" / "stderr")
    with pytest.raises(OSError, match="stderr"):
        Logs(place, [1])


@pytest.mark.parametrize("kind", ["queue", "folder", "device"])
def test_a_report_takes_the_spec_of_a_file_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "report.html"
    if kind == "queue":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(OSError, match=r"--report .*: (this is a folder|expected a regular file)"):
        writable_file("--report", path)


def test_a_link_to_a_report_stays_one(tmp_path: Path) -> None:
    (tmp_path / "latest.html").symlink_to("new.html")
    assert writable_file("--report", tmp_path / "latest.html") == tmp_path / "new.html"


def save(path: Path) -> None:
    ObjectState(lambda obj: obj, lambda: 0, step=1).save(path)


def report(path: Path) -> None:
    JobReport(writable_file("--report", path), ["x"]).write({}, JobOutcome(0), lambda text: None)


@as_root
@pytest.mark.parametrize("write", [save, report])
@pytest.mark.parametrize("name", ["link", "link/file"])
def test_another_users_link_leads_nowhere(
    tmp_path: Path, write: Callable[[Path], None], name: str
) -> None:
    """In a folder where every user may make links, it could lead to any file of ours."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    for folder in (shared, own):
        folder.mkdir()
    shared.chmod(0o1777)
    (own / "file").write_text("words")
    (shared / "link").symlink_to(own / "file" if name == "link" else own)
    os.chown(shared / "link", NOBODY, NOBODY, follow_symlinks=False)
    text = rf"{shared}/link: the link belongs to user {NOBODY}, expected 0"
    with pytest.raises(OSError, match=text):
        write(shared / name)
    assert contents(own).keys() == {"file"}
    assert (own / "file").read_text() == "words"
    os.chown(shared, NOBODY, NOBODY)  # whose folder it is, can put there what is to be written to
    write(shared / name)
    assert (own / "file").read_bytes() != b"words"
    assert (shared / "link").is_symlink()


@pytest.mark.parametrize("write", [save, report])
def test_a_file_that_is_replaced_keeps_its_permissions(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    for mode in (0o600, 0o664):
        (tmp_path / "file").write_text("words")
        (tmp_path / "file").chmod(mode)
        write(tmp_path / "file")
        assert (tmp_path / "file").stat().st_mode & 0o7777 == mode


def test_links_lead_where_the_system_says(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "up").symlink_to("a/b/..")
    (tmp_path / "a" / "whole").symlink_to(tmp_path / "up" / "b")
    (tmp_path / "broken").symlink_to("a/none/file")
    for name in ("up/x", "a/whole/../new", "broken", "a/./b", "a/whole", "up/whole/.."):
        assert follow(tmp_path / name) == (tmp_path / name).resolve()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match=r"Too many levels .*circle"):
        follow(tmp_path / "circle")


def test_a_state_among_a_users_files(place: Path, nothing_is_lost: Callable[[], None]) -> None:
    start = f".state.{os.uname().nodename}-"
    for number, text in enumerate(("", "of no process that lives", "PK\3\4" * 20)):
        (place / f"{start}{number}.partial").write_text(text)
    os.mkfifo(place / f"{start}4194305.partial")
    (place / f"{start}4194306.partial").symlink_to("thesis.txt")
    before = contents(place)
    ObjectState(lambda obj: obj, lambda: 0, step=1).save(place / "state.hvd")
    ObjectState(lambda obj: obj, lambda: 0, step=1).save(place / "state")
    assert lost(before, place) == ["state"]
    os.mkfifo(place / "queue")
    with pytest.raises(OSError, match="queue: expected a regular file"):
        ObjectState(lambda obj: obj, lambda: 0, step=1).load(place / "queue")


def test_an_autotune_log_among_a_users_files(tmp_path: Path, caplog: Any) -> None:
    defaults = values_of(Settings())
    knobs = knobs_for(Settings(), (), Surroundings(is_native=True, spans_hosts=False))
    verdict = Result({**defaults, "cycle_time_ms": 0.2}, 12.5, 1.1)
    found = tmp_path / "log.csv.yaml"
    log = SampleLog(str(tmp_path / "log.csv"), has_cache=True, spans_hosts=False)
    for text in ("words", None):
        found.write_text("words") if text else found.unlink()
        log.finish(verdict, knobs, defaults)
        log.finish(verdict, knobs, defaults)
        assert (found.read_text() == "words") == (text is not None)
    assert caplog.text.count("it was not written by autotuning") == 2
    os.mkfifo(tmp_path / "queue")
    SampleLog(str(tmp_path / "queue"), has_cache=True, spans_hosts=False)
    assert "queue: it cannot be written" in caplog.text


def test_experiments_get_a_folder_that_was_not_there(
    place: Path, nothing_is_lost: Callable[[], None]
) -> None:
    (place / "7").symlink_to("deep")
    (place / "8").write_text("words")
    assert take_number(place) == 9
    assert free_number(place) == 10
    nothing_is_lost()


def test_where_slurms_ranks_meet_among_a_users_files(
    place: Path, nothing_is_lost: Callable[[], None]
) -> None:
    store = HostedStore((("10.0.0.5", 4000),), b"s" * 32)
    (place / "private").write_text("words")
    (place / "private").chmod(0o600)
    for name in ("thesis.txt", "private", "link"):
        with pytest.raises(InitError, match=str(place)):
            publish(store, place / name)
    os.mkfifo(place / "queue")
    for path in (place / "queue",):
        with pytest.raises(InitError, match="queue: expected a regular file"):
            wait_for_contact(path, Deadline(1))
    nothing_is_lost()
    publish(store, place / "contact")
    publish(store, place / "contact")  # a step of the same name before did not end well
    assert wait_for_contact(place / "contact", Deadline(1)) == store


def test_a_timeline_that_nobody_has_named(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "thesis.json").write_text("[\n1,\n2\n]\n")
    program = "import horovod.numpy as hvd\nhvd.init()\nhvd.shutdown()\n"
    environ = {**os.environ, "HOROVOD_TIMELINE": str(tmp_path / "thesis.json")}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=500)
    assert (tmp_path / "thesis.json").read_text() == "[\n1,\n2\n]\n"
    assert "thesis.json holds something else and is left as it is" in capfd.readouterr().err
    for _ in range(2):
        environ["HOROVOD_TIMELINE"] = str(tmp_path / "timeline.json")
        subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=500)
        assert "process_name" in (tmp_path / "timeline.json").read_text()


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under any number."""

    def refuse(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setenv("HOME", str(tmp_path))
    assert home_folder() == tmp_path
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", refuse)
    with pytest.raises(FileNotFoundError, match="no home folder, and HOME is not set"):
        job_folder_path("fred", DRIVER, {})
    assert job_folder_path("fred", DRIVER, {"XDG_STATE_HOME": "/state"}).parts[1] == "state"
