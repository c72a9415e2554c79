"""The launcher, its ranks and the doctor in folders of another user, or with the user's files."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign_files import NOBODY, contents, fill, lost
from launching import run

from horovod.launch.doctor.jobs import gather

pytestmark = pytest.mark.usefixtures("no_child_is_left")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
WORKER = [sys.executable, str(Path(__file__).parent / "workers" / "ailing.py"), "healthy"]
WORLD = {"world": "1", "ranks": ["rank 0 (\x1b[31mred\x07)"], "hosts": [[0]], "settings": {}}


def seen_by_nobody(folder: Path) -> str:
    """The doctor's output for another user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            gather(folder)
        except OSError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        text = file.read()
    os.waitpid(child, 0)
    return text.decode()


def recording(**changes: Any) -> bytes:
    """A recording of a world of one rank without events; all its texts have control characters."""
    head = {
        "horovod_recording": 1,
        "rank": 0,
        "name": "rank 0 \x1b[2J",
        "written_by": 0,
        "reason": "error\x1b",
        "detail": "boom \x1b]0;title\x07",
        "world": WORLD,
        "written_ns": 1,
        "written_epoch_ns": 10**18,
        **dict.fromkeys(("labels", "events", "stacks_bytes", "lost"), 0),
        **changes,
    }
    return json.dumps(head).encode() + b"\n"


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "NOTES": str(folder), **more}


def job_folder(folder: Path, owner: int) -> Path:
    """A fake job folder of another user, with FIFOs instead of files."""
    folder.mkdir(parents=True)
    (folder / f".horovod-recordings-of-{folder.name}").touch()
    (folder / "rank-0-pid-1-world-1-error.hvdrec").write_bytes(recording())
    for name in ("a.running", "outcome", "wanted", "b.hvdrec"):
        os.mkfifo(folder / name)
    for path in (*folder.iterdir(), folder, folder.parent):
        os.chown(path, owner, owner)
    return folder


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder like /tmp, where every user may make folders, unlike in tmp_path."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@as_root
def test_a_recorder_folder_that_another_user_has_made_first(tmp_path: Path) -> None:
    base = tmp_path / f"horovod-{os.getuid()}"
    job_folder(base / "job-1", NOBODY)
    before = contents(base)
    environ = environment(tmp_path, TMPDIR=str(tmp_path))
    for arguments in (["--doctor"], ["--doctor", "job-1"], ["--doctor", str(base / "job-1")]):
        status, out, err = run(*arguments, env=environ)
        assert (status, out) == (2, "")
        assert err.startswith(f"horovodrun: --doctor: {base}")
        assert err.endswith(f"belongs to user {NOBODY}, expected {os.getuid()}\n")
        assert len(err.splitlines()) == 1
    status, _, err = run("--job-id", "job-1", "-np", "2", *WORKER, env=environ)
    assert (status, err) == (0, "")
    assert contents(base) == before


@as_root
def test_jobs_of_two_users_in_a_shared_folder(shared: Path, tmp_path: Path) -> None:
    job_folder(shared / "theirs", NOBODY)
    os.chown(shared, 0, 0)
    before = contents(shared)
    environ = environment(tmp_path, HOROVOD_RECORDER_DIR=str(shared))
    for job in ("theirs", "ours"):
        status, _, err = run("--job-id", job, "-np", "2", *WORKER, env=environ)
        assert (status, err) == (0, "")
        assert lost(before, shared) == []
    status, out, _ = run("--doctor", "--json", env=environ)
    assert json.loads(out)["job"] == "ours"
    status, _, err = run("--doctor", "theirs", env=environ)
    assert (status, "belongs to user" in err) == (2, True)
    # The opposite: the reader of another user does not read our folder.
    assert "/ours" in seen_by_nobody(shared / "ours")
    (shared / "ours").chmod(0o755)
    assert seen_by_nobody(shared / "ours").endswith(f"belongs to user 0, expected {NOBODY}")


def test_a_job_in_a_folder_full_of_a_users_files(tmp_path: Path) -> None:
    fill(tmp_path / "place", tmp_path / "outside")
    before = contents(tmp_path)
    environ = environment(tmp_path, HOROVOD_RECORDER_DIR=str(tmp_path / "place"))
    for job in ("deep", "fine"):
        status, out, err = run("--job-id", job, "-np", "2", *WORKER, env=environ)
        assert (status, out, err) == (0, "", "")
        assert lost(before, tmp_path) == []
    status, out, _ = run("--doctor", "--json", env=environ)
    assert json.loads(out)["job"] == "fine"
    assert lost(before, tmp_path) == []


def test_a_folder_with_queues_links_and_damaged_files(tmp_path: Path) -> None:
    folder = tmp_path / "copied"
    folder.mkdir(mode=0o755)
    for name in ("a.hvdrec", "a.running", "outcome"):
        os.mkfifo(folder / name)
    (folder / "link.hvdrec").symlink_to("/dev/zero")
    (folder / "zero.running").symlink_to("/dev/zero")
    damaged = {
        "world": recording(world=["x"]),
        "ranks": recording(world={"ranks": 3}),
        "hosts": recording(world={**WORLD, "hosts": [[7]]}),
        "rank": recording(rank=7),
        "type": recording(written_ns="now"),
        "count": recording(events=1 << 60),
        "nested": b"[" * 100_000,
        "short": recording()[:50],
        "\x1b[31m": b"",
    }
    for name, data in damaged.items():
        (folder / f"{name}.hvdrec").write_bytes(data)
    status, out, err = run("--doctor", str(folder))
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "no rank of copied has left a recording; " in err
    assert "\x1b" not in err
    (folder / "rank-0-pid-1-world-1-error.hvdrec").write_bytes(recording())
    status, out, err = run("--doctor", str(folder))
    assert err == ""
    assert "\x1b" not in out
    assert "\x07" not in out
    assert r"Rank 0 (\x1b[31mred\x07)" in out or r"rank 0 (\x1b[31mred\x07)" in out
    told = [line for line in out.replace("\n", " ").split("not read: ") if ".hvdrec" in line]
    assert len(told) == len(damaged)
    assert not (folder / "wanted").exists()
