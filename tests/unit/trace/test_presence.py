"""Who says that it runs, and recordings on request."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from foreign_files import mark_job
from waiting import until

import horovod.numpy as hvd
from horovod.core.base.own_files import OwnFolder
from horovod.trace.presence import (
    RankState,
    find_presences,
    own_presence,
    request_recordings,
    state_of,
)
from horovod.trace.recording import find_recordings, read_recording


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnFolder]:
    with OwnFolder(tmp_path) as folder:
        yield folder


def test_a_world_of_a_job_says_that_it_runs_and_leaves_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_RECORDER_DIR", str(tmp_path))
    monkeypatch.setenv("HOROVOD_JOB_ID", "job-1")
    own = OwnFolder(mark_job(tmp_path / "job-1"))
    folder = own.path
    request_recordings(own, [], "of somebody before")
    hvd.init()
    try:
        hvd.allreduce(np.ones(3), name="x")
        (presence,) = find_presences(own)
        assert (presence.rank, presence.pid) == (0, os.getpid())
        assert presence.world["job"] == "job-1"
        assert state_of(presence) is RankState.RUNNING
        assert find_recordings(folder) == []
        request_recordings(own, [presence], "now")
        (path,) = until(lambda: find_recordings(folder))
        recording = read_recording(path)
        assert (recording.reason, recording.detail) == ("request", "now")
        assert "test_presence.py" in recording.stacks
        assert presence.path.stem in path.name
    finally:
        hvd.shutdown()
    assert find_presences(own) == []
    assert [read_recording(path).reason for path in find_recordings(folder)] == ["request", "end"]
    own.close()
    hvd.init()
    hvd.shutdown()
    assert len(find_recordings(folder)) == 3  # nothing of the first world is overwritten


def test_a_process_alone_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RECORDER_DIR", str(tmp_path))
    monkeypatch.delenv("HOROVOD_JOB_ID", raising=False)
    hvd.init()
    hvd.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_a_process_is_told_from_one_that_has_its_number(own: OwnFolder) -> None:
    text = own_presence(0, "rank 0", {}, 0)
    fields = json.loads(text)
    path = own.path / "rank-0.running"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        path.write_text(json.dumps({**fields, "pid": child.pid, "start": stat[19]}))
        (presence,) = find_presences(own)
        assert state_of(presence) is RankState.RUNNING
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: state_of(presence) is RankState.STOPPED)
        child.kill()
        until(lambda: state_of(presence) is RankState.GONE)
    path.write_text(json.dumps({**fields, "start": "1"}))
    assert state_of(find_presences(own)[0]) is RankState.GONE
    path.write_text(json.dumps({**fields, "place": "another machine"}))
    assert state_of(find_presences(own)[0]) is RankState.ELSEWHERE


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 100_000, '{"horovod_running": 2}', '{"horovod_running": 1}']
)
def test_what_is_no_presence_is_left_out(own: OwnFolder, text: str) -> None:
    (own.path / "rank-0.running").write_text(text)
    assert find_presences(own) == []


def test_a_process_without_a_handler_gets_no_signal(own: OwnFolder) -> None:
    number = int(signal.SIGRTMAX)  # ends a process that has no handler
    path = own.path / "rank-0.running"
    program = f"import signal\nsignal.signal({number}, lambda *_: print('asked', flush=True))\n"
    for begin, answer in (("", ""), (program, "asked\n")):
        words = [sys.executable, "-c", f"{begin}print('ready', flush=True)\ninput()\n"]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            fields = json.loads(own_presence(0, "rank 0", {}, number))
            start = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
            path.write_text(json.dumps({**fields, "pid": child.pid, "start": start}))
            request_recordings(own, find_presences(own), "now")
            assert child.communicate("\n", timeout=500)[0] == answer
            assert child.returncode == 0
