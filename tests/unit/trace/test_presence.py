"""Who says that it runs, and recordings on request."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import until

import horovod.numpy as hvd
from horovod.trace.presence import (
    RankState,
    find_presences,
    own_presence,
    request_recordings,
    state_of,
)
from horovod.trace.recording import find_recordings, read_recording


def test_a_world_of_a_job_says_that_it_runs_and_leaves_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_RECORDER_DIR", str(tmp_path))
    monkeypatch.setenv("HOROVOD_JOB_ID", "job-1")
    folder = tmp_path / "job-1"
    folder.mkdir(mode=0o700)
    request_recordings(folder, [], "of somebody before")
    hvd.init()
    try:
        hvd.allreduce(np.ones(3), name="x")
        (presence,) = find_presences(folder)
        assert (presence.rank, presence.pid) == (0, os.getpid())
        assert presence.world["job"] == "job-1"
        assert state_of(presence) is RankState.RUNNING
        assert find_recordings(folder) == []
        request_recordings(folder, [presence], "now")
        (path,) = until(lambda: find_recordings(folder))
        recording = read_recording(path)
        assert (recording.reason, recording.detail) == ("request", "now")
        assert "test_presence.py" in recording.stacks
        assert presence.path.stem in path.name
    finally:
        hvd.shutdown()
    assert find_presences(folder) == []
    assert [read_recording(path).reason for path in find_recordings(folder)] == ["request", "end"]
    hvd.init()
    hvd.shutdown()
    assert len(find_recordings(folder)) == 3  # nothing of the first world is overwritten


def test_a_process_alone_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RECORDER_DIR", str(tmp_path))
    monkeypatch.delenv("HOROVOD_JOB_ID", raising=False)
    hvd.init()
    hvd.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_a_process_is_told_from_one_that_has_its_number(tmp_path: Path) -> None:
    text = own_presence(0, "rank 0", {}, 0)
    fields = json.loads(text)
    path = tmp_path / "rank-0.running"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        path.write_text(json.dumps({**fields, "pid": child.pid, "start": stat[19]}))
        (presence,) = find_presences(tmp_path)
        assert state_of(presence) is RankState.RUNNING
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: state_of(presence) is RankState.STOPPED)
        child.kill()
        until(lambda: state_of(presence) is RankState.GONE)
    path.write_text(json.dumps({**fields, "start": "1"}))
    assert state_of(find_presences(tmp_path)[0]) is RankState.GONE
    path.write_text(json.dumps({**fields, "place": "another machine"}))
    assert state_of(find_presences(tmp_path)[0]) is RankState.ELSEWHERE


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"horovod_running": 2}', '{"horovod_running": 1}']
)
def test_what_is_no_presence_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "rank-0.running").write_text(text)
    assert find_presences(tmp_path) == []


def test_a_process_without_a_handler_gets_no_signal(tmp_path: Path) -> None:
    number = int(signal.SIGRTMAX)  # ends a process that has no handler
    path = tmp_path / "rank-0.running"
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
            request_recordings(tmp_path, find_presences(tmp_path), "now")
            assert child.communicate("\n", timeout=60)[0] == answer
            assert child.returncode == 0
