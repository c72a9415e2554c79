"""The recorder files and timelines of jobs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launching import noted_environment, start

from horovod.trace.operations import operations_of
from horovod.trace.recording import EventKind, RecordingError, find_recordings, read_recording

pytestmark = pytest.mark.usefixtures("no_child_is_left")

WORKER = [sys.executable, str(Path(__file__).parent / "workers" / "traced.py")]
PATIENCE_S = 500
# For both ranks, in a timeline.
OPERATIONS = {(name, rank) for name in ("NEGOTIATE_ALLREDUCE", "ALLREDUCE") for rank in (0, 1)}


def until(found: Callable[[], Any]) -> Any:
    """The first true result of ``found``."""
    deadline = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return result


def recordings(folder: Path, reason: str) -> list[Any]:
    found = [path for path in find_recordings(folder) if path.name.endswith(f"-{reason}.hvdrec")]
    try:
        return [read_recording(path) for path in found]
    except (FileNotFoundError, RecordingError):
        return []


def rows_of(timeline: Path) -> set[tuple[str, int]]:
    """The names in the timeline by rank; empty while the file is being written."""
    try:
        events = json.loads(timeline.read_text())
    except ValueError:
        return set()
    return {(event.get("name"), event.get("tid")) for event in events}


def test_a_killed_rank_leaves_a_whole_timeline_and_its_last_events(tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.json"
    arguments = (
        "-np",
        "2",
        "--timeline-filename",
        str(timeline),
        "--timeline-mark-cycles",
        *WORKER,
    )
    with start(*arguments, "timeline", env=noted_environment(tmp_path)) as process:
        try:
            until(lambda: timeline.exists() and timeline.stat().st_size > 5_000_000)
            until(lambda: rows_of(timeline) >= OPERATIONS)
            pid = json.loads((tmp_path / "pid.0").read_text())
            os.kill(pid, signal.SIGKILL)
            process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    events = json.loads(timeline.read_text())
    assert rows_of(timeline) >= {*OPERATIONS, ("CYCLE_START", 0)}
    names = {event["args"]["name"] for event in events if event.get("name") == "process_name"}
    assert "allreduce.g19" in names
    (dead,) = recordings(tmp_path, "death")
    assert (dead.rank, dead.written_by) == (0, 1)
    assert dead.name == f"rank 0 (pid {pid} on localhost)"
    assert len(operations_of(dead)) > 1000
    (survivor,) = recordings(tmp_path, "error")
    assert survivor.rank == 1
    assert survivor.of_kind(EventKind.ALARM)["subject"].tolist() == [0]
    assert "died" in survivor.detail
    assert dead.usage is None
    assert survivor.usage.cpu_ns > survivor.usage.kernel_ns > 0
    assert survivor.usage.elapsed_ns > 0


def test_sigusr1_writes_a_file_and_belongs_to_the_program_that_wants_it(tmp_path: Path) -> None:
    with start("-np", "2", *WORKER, "handler", env=noted_environment(tmp_path)) as process:
        try:
            both = until(lambda: len(found := recordings(tmp_path, "signal")) == 2 and found)
            (tmp_path / "unfinished").write_text("0")
            (tmp_path / "unfinished").rename(tmp_path / "written")  # at once: workers wait for it
            _, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, b"")
    assert {recording.rank for recording in both} == {0, 1}
    for recording in both:
        assert "traced.py" in recording.stacks
    for rank in (0, 1):
        assert json.loads((tmp_path / f"caught.{rank}").read_text()) == 2
    assert not recordings(tmp_path, "error")
