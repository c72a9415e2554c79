from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import mark_job

import horovod.numpy as hvd
from horovod import _native
from horovod.launch.doctor.jobs import NothingFoundError, find_job
from horovod.settings import Settings
from horovod.trace.folders import default_folder, engine_path, job_name, timeline_of_world
from horovod.trace.operations import buckets_of, operations_of
from horovod.trace.recording import (
    EVENT_DTYPE,
    LABEL_DTYPE,
    EventKind,
    RecordingError,
    find_recordings,
    read_recording,
)
from horovod.trace.setup import TracedWorld, configure_trace

HEAD = {
    "horovod_recording": 1,
    "rank": 2,
    "name": "rank 2 (pid 9 on a)",
    "written_by": 0,
    "reason": "death",
    "detail": "it died",
    "written_ns": 5_000,
    "written_epoch_ns": 1_000_005_000,
    "lost": 7,
    "world": {"size": 3},
}


def write(path: Path, events: list[tuple[int, ...]], **changes: Any) -> Path:
    """A file with one label, 4: the tensor "x"."""
    labels = np.zeros(1, LABEL_DTYPE)
    labels[0]["id"] = 4
    labels[0]["name"][:1] = ord("x")
    labels[0]["name_length"] = 1
    labels[0]["dims_count"] = 2
    labels[0]["dims"][:2] = 2, 3
    head = {**HEAD, "labels": 1, "events": len(events), "stacks_bytes": 5, **changes}
    array = np.array(events, EVENT_DTYPE)
    parts = (json.dumps(head).encode(), b"\n", labels.tobytes(), array.tobytes(), b"stack")
    path.write_bytes(b"".join(parts))
    return path


def test_a_file_says_who_and_what(tmp_path: Path) -> None:
    events = [(0, EventKind.NONE, 0, 0, 0, 0), (1_000, EventKind.SUBMIT, 1, 0, 4, 24)]
    recording = read_recording(write(tmp_path / "a.hvdrec", events))
    assert (recording.rank, recording.written_by, recording.lost) == (2, 0, 7)
    assert (recording.reason, recording.detail, recording.stacks) == ("death", "it died", "stack")
    assert recording.world == {"size": 3}
    assert len(recording.events) == 1
    assert recording.epoch_ns(1_000) == 1_000_001_000
    assert recording.labels[4].shape == (2, 3)
    assert recording.name_of(4) == "x"
    assert "5" in recording.name_of(5)
    assert recording.usage is None


def test_what_the_process_has_used(tmp_path: Path) -> None:
    usage = {"elapsed_ns": 9, "cpu_ns": 8, "kernel_ns": 7, "page_faults": 6}
    assert read_recording(write(tmp_path / "a.hvdrec", [], usage=usage)).usage == (9, 8, 7, 6)
    damaged = ({"cpu_ns": -1}, {"elapsed_ns": 0}, {"cpu_ns": 0}, {"kernel_ns": 9})
    for wrong in (*({**usage, **part} for part in damaged), {"elapsed_ns": 9}, 3):
        with pytest.raises(RecordingError, match="usage"):
            read_recording(write(tmp_path / "a.hvdrec", [], usage=wrong))


def test_what_is_not_whole_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hvdrec", [(1, EventKind.SUBMIT, 0, 0, 4, 8)])
    content = path.read_bytes()
    line_end = content.index(b"\n")
    for end in (0, line_end // 2, line_end + 1, line_end + 100, len(content) - 10):
        path.write_bytes(content[:end])
        with pytest.raises(RecordingError, match=r"a\.hvdrec"):
            read_recording(path)
    with pytest.raises(RecordingError, match="version 2"):
        read_recording(write(path, [], horovod_recording=2))
    with pytest.raises(RecordingError):
        read_recording(write(path, [], labels=-1))


def test_operations_are_put_together(tmp_path: Path) -> None:
    events = [
        (5, EventKind.FUSED, 0, 0, 3, 9),  # submitted before the recording begins
        (10, EventKind.SUBMIT, 1, 0, 4, 24),
        (20, EventKind.BUCKET_START, 0, 0, 10, 1),
        (20, EventKind.FUSED, 0, 0, 4, 10),
        (25, EventKind.BUCKET_START, 0, 1, 0, 1),  # of another process set
        (30, EventKind.WAIT, 0, 0, 1, 0),
        (40, EventKind.WAITED, 0, 0, 1, 8),
        (50, EventKind.BUCKET_DONE, 0, 0, 10, 8),
        (60, EventKind.SUBMIT, 0, 0, 4, 24),
        (65, EventKind.WAIT, 0, 1, 2, 0),
        (70, EventKind.SUBMIT, 0, 0, 6, 1),
        (80, EventKind.ERROR, 0, 0, 6, 3),
    ]
    recording = read_recording(write(tmp_path / "a.hvdrec", events))
    early, done, pending, failed = operations_of(recording)
    assert (early.label, early.submitted_ns, early.started_ns) == (3, None, 5)
    assert (done.submitted_ns, done.started_ns, done.done_ns, done.bucket) == (10, 20, 50, 10)
    assert done.was_last
    assert done.size_bytes == 24
    assert recording.labels[done.label].name == "x"
    assert (pending.submitted_ns, pending.is_pending) == (60, True)
    assert (failed.error, failed.is_pending) == (3, False)
    first, other = buckets_of(recording)
    assert (first.started_ns, first.done_ns, first.waited_ns) == (20, 50, 8)
    assert first.waits == [(1, 32, 8)]
    assert first.waiting_for is None
    assert (other.process_set, other.done_ns, other.waiting_for) == (1, None, 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the recordings of a world of one go; the world ends with the test."""
    monkeypatch.setenv("HOROVOD_RECORDER_DIR", str(tmp_path / "recordings"))
    yield tmp_path / "recordings"
    hvd.shutdown()


def test_the_engine_writes_what_is_read_here(folder: Path, tmp_path: Path) -> None:
    hvd.init()
    hvd.allreduce(np.ones((2, 3), np.float32), name="weight")
    path = Path(hvd.dump_recorder())
    assert find_recordings(folder) == [path]
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent)] == [0o600, 0o700]
    recording = read_recording(path)
    assert (recording.rank, recording.reason, recording.lost) == (0, "call", 0)
    assert recording.world["size"] == 1
    assert recording.world["settings"]["HOROVOD_RECORDER_DIR"] == str(folder)
    operation = operations_of(recording)[-1]
    assert recording.name_of(operation.label) == "allreduce.weight"
    assert not operation.is_pending
    assert operation.size_bytes == 24
    assert recording.labels[operation.label].shape == (2, 3)
    (kind,) = recording.of_kind(EventKind.WORLD)["kind"]
    assert kind == recording.events[0]["kind"]
    own = tmp_path / "own.hvdrec"
    assert hvd.dump_recorder(own) == str(own)
    with pytest.raises(OSError, match="nowhere"):
        hvd.dump_recorder(tmp_path / "nowhere" / "x")


def test_a_folder_keeps_the_last_jobs_and_nothing_else_is_touched(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "precious").mkdir()
    (folder / "precious" / "thesis.txt").write_text("words")
    os.utime(folder / "precious", (1, 1))
    for job in range(30):
        mark_job(folder / f"job-{job}")
        for name in (
            "rank-0-pid-1-world-1-error.hvdrec",
            "rank-1-pid-0-world-1.running",
            "wanted",
            "outcome",
        ):
            (folder / f"job-{job}" / name).write_bytes(b"")
        os.utime(folder / f"job-{job}", (job + 2, job + 2))
    hvd.init()
    hvd.dump_recorder()
    left = {path.name for path in folder.iterdir()}
    assert (folder / "precious" / "thesis.txt").read_text() == "words"
    assert "job-29" in left
    assert "job-0" not in left
    assert len(left) <= 17


def test_a_job_that_runs_is_spared_and_one_with_many_worlds_keeps_the_newest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o700)
    for job in range(20):
        mark_job(folder / f"job-{job}")
        pid = os.getpid() if job == 1 else 2**22  # of no process
        (folder / f"job-{job}" / f"rank-0-pid-{pid}-world-1.running").write_text("")
        os.utime(folder / f"job-{job}", (job + 2, job + 2))
    monkeypatch.setenv("HOROVOD_JOB_ID", "job-0")
    for world in range(3):
        path = folder / "job-0" / f"rank-0-pid-1-world-{world}-error.hvdrec"
        path.touch()
        os.truncate(path, 60 * 1024 * 1024)  # without a block on the disk
        os.utime(path, (world + 1, world + 1))
    hvd.init()
    hvd.dump_recorder()
    left = {path.name for path in folder.iterdir()}
    assert {"job-0", "job-1"} <= left
    assert "job-2" not in left
    assert len(left) <= 18
    worlds = sorted(path.name for path in (folder / "job-0").glob("rank-0-pid-1-*"))
    assert worlds == [f"rank-0-pid-1-world-{world}-error.hvdrec" for world in (1, 2)]


def refuses_to_dump(kind: type[Exception], text: str) -> None:
    hvd.init()
    try:
        with pytest.raises(kind, match=text):
            hvd.dump_recorder()
    finally:
        hvd.shutdown()


def test_nothing_is_written_where_somebody_else_could_read_or_nobody_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    Path(default_folder()).mkdir(mode=0o777)
    Path(default_folder()).chmod(0o777)
    refuses_to_dump(OSError, "this user alone")
    monkeypatch.setenv("HOROVOD_RECORDER_DIR", "off")
    refuses_to_dump(ValueError, "folder")


def test_without_a_folder_for_temporary_files_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container that is read-only."""

    def missing() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", missing)
    monkeypatch.delenv("HOROVOD_RECORDER_DIR", raising=False)
    assert default_folder() == ""
    with pytest.raises(NothingFoundError, match="no folder for temporary files"):
        find_job("", {})
    refuses_to_dump(ValueError, "folder")


def test_paths_reach_the_engine_in_the_bytes_of_the_file_system(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "ü.json")
    program = "import horovod.numpy as hvd; hvd.init(); hvd.shutdown()"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, **ascii_only, "HOROVOD_TIMELINE": os.fsdecode(path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=500)
    assert os.path.exists(path)
    with pytest.raises(ValueError, match="need a path in UTF-8"):
        engine_path(os.fsdecode(b"/tmp/\xff.json"))


def test_without_a_recorder_there_is_nothing_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RECORDER_EVENTS", "0")
    hvd.init()
    try:
        with pytest.raises(ValueError, match="switched off"):
            hvd.dump_recorder()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    finally:
        hvd.shutdown()


def test_timelines_begin_only_where_the_environment_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.start_timeline(tmp_path / "x.json")
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.stop_timeline()
    hvd.init()
    try:
        with pytest.raises(ValueError, match="HOROVOD_TIMELINE=DYNAMIC"):
            hvd.start_timeline(tmp_path / "x.json")
        hvd.stop_timeline()
    finally:
        hvd.shutdown()


def test_a_timeline_can_be_begun_moved_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    hvd.init()
    try:
        hvd.allreduce(np.ones(3), name="before")
        hvd.start_timeline(tmp_path / "a.json", mark_cycles=True)
        hvd.allreduce(np.ones(3), name="first")
        hvd.start_timeline(str(tmp_path / "b.json"))
        hvd.allreduce(np.ones(3), name="second")
        hvd.stop_timeline()
        hvd.allreduce(np.ones(3), name="after")
        hvd.start_timeline("/nowhere/at/all.json")
    finally:
        hvd.shutdown()
    assert "there will be no timeline" in capfd.readouterr().err
    texts = [(tmp_path / name).read_text() for name in ("a.json", "b.json")]
    for text in texts:
        assert "start_time_since_epoch_in_micros" in text
        assert json.loads(text)
    names = ("before", "first", "second", "after")
    found = [[f"allreduce.{name}" in text for name in names] for text in texts]
    assert found == [[False, True, False, False], [False, False, True, False]]
    assert ["CYCLE_START" in text for text in texts] == [True, False]


def test_a_job_has_a_folder_of_a_harmless_name() -> None:
    assert job_name({}, 7, "node-1") == "node-1-7"
    assert job_name({"HOROVOD_JOB_ID": "../../etc/x y"}, 7, "node-1") == "_.._etc_x_y"
    assert job_name({"HOROVOD_JOB_ID": "..."}, 7, "node-1") == "job"


def test_a_timeline_needs_a_recorder() -> None:
    config = _native.Config()
    configure_trace(config, Settings(timeline="x.json", recorder_events=0), TracedWorld("job"))
    assert config.trace.events == Settings().recorder_events
    assert config.trace.timeline_path == "x.json"
    configure_trace(config, Settings(timeline="DYNAMIC"), TracedWorld("job"))
    assert config.trace.timeline_path == ""


def test_further_worlds_of_a_job_have_timelines_of_their_own() -> None:
    named = {
        number: timeline_of_world("logs/t.json", number)
        for number in ("1", "2", "world1/1", "world3/1", "world3/2", "0-1/1", "2-3/1")
    }
    assert named == {
        "1": "logs/t.json",
        "2": "logs/t.world2.json",
        "world1/1": "logs/t.json",
        "world3/1": "logs/t.world3.json",
        "world3/2": "logs/t.world3-2.json",
        "0-1/1": "logs/t.0-1.json",
        "2-3/1": "logs/t.2-3.json",
    }
