"""Jobs with and without problems, and the findings of ``horovodrun --doctor``."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import noted_environment, run, start
from waiting import until

pytestmark = pytest.mark.usefixtures("no_child_is_left")

WORKER = [sys.executable, str(Path(__file__).parent / "workers" / "ailing.py")]


def doctor(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    status, out, err = run("--doctor", *arguments, "--json", env=noted_environment(folder))
    assert err == ""
    return status, json.loads(out)


def finding(result: dict[str, Any], code: str) -> dict[str, Any]:
    (found,) = [entry for entry in result["findings"] if entry["code"] == code]
    return dict(found)


def test_jobs_that_have_ended(tmp_path: Path) -> None:
    for job in ("healthy", "slow"):
        arguments = ("--job-id", f"{job}-1", "-np", "2", *WORKER, job)
        assert run(*arguments, env=noted_environment(tmp_path)) == (0, "", "")
    _, result = doctor(tmp_path, "healthy-1")
    assert result["steps"] >= 18
    assert [rank["state"] for rank in result["ranks"]] == ["ended", "ended"]
    # On a busy machine one of its ranks may be slow.
    problems = {entry["code"] for entry in result["findings"] if entry["severity"] == "problem"}
    assert problems <= {"slow-rank"}
    for job in ((), ("slow-1",), (str(tmp_path / "recordings" / "slow-1"),)):
        status, result = doctor(tmp_path, *job)
        assert (status, result["job"]) == (1, "slow-1")
        slow = finding(result, "slow-rank")
        assert slow["ranks"] == [1]
        assert slow["evidence"]["extra_seconds"] > 0.005


def test_ranks_that_diverge_while_they_wait_for_each_other(tmp_path: Path) -> None:
    with start("-np", "2", *WORKER, "diverging", env=noted_environment(tmp_path)) as process:
        try:
            until(lambda: len(list(tmp_path.glob("recordings/*/*.running"))) == 2)
            until(lambda: "divergence" in [f["code"] for f in doctor(tmp_path)[1]["findings"]])
            status, result = doctor(tmp_path)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=500)
    assert (status, result["is_running"]) == (1, True)
    diverged = finding(result, "divergence")
    operations = {entry["name"]: entry for entry in diverged["evidence"]["operations"]}
    assert operations["allreduce.accuracy"]["ready"] == [1]
    assert operations["allreduce.accuracy"]["missing"] == [0]
    assert {"allreduce.g0"} <= set(operations)
    assert any("ailing.py" in line and "in validate" in line for line in diverged["lines"])
    assert [rank["state"] for rank in result["ranks"]] == ["running", "running"]
    assert f"horovodrun --doctor {result['job']}" in err.decode()


def test_a_rank_that_was_killed(tmp_path: Path) -> None:
    with start("-np", "2", *WORKER, "endless", env=noted_environment(tmp_path)) as process:
        try:
            pid = json.loads(until(lambda: _text(tmp_path / "pid.1")))
            os.kill(pid, signal.SIGKILL)
            _, err = process.communicate(timeout=500)
        finally:
            process.kill()
    status, result = doctor(tmp_path)
    death = finding(result, "death")
    assert (status, death["ranks"]) == (1, [1])
    assert f"Rank 1 (pid {pid} on localhost) died" in death["text"]
    assert len(death["lines"]) > 1
    assert result["ranks"][1]["state"] == "died"
    last = err.decode().splitlines()
    assert f"horovodrun: what every rank did last: horovodrun --doctor {result['job']}" in last


def test_a_rank_that_raised_an_exception(tmp_path: Path) -> None:
    status, _, err = run("-np", "2", *WORKER, "raising", env=noted_environment(tmp_path))
    assert status == 1
    lines = err.splitlines()
    raised = re.escape("Rank 1 raised ValueError: bad batch (") + r".*ailing\.py:\d+\)"
    assert re.fullmatch(raised, lines[-3])
    assert lines[-2] == "Process name: 1"
    # On a busy machine rank 0 may be ended before it prints its line.
    victim = [line for line in lines if line.startswith("[0]<stderr>:")]
    assert not victim or "horovod.errors.PeerLostError: allreduce 'g" in victim[0]
    assert len(victim) <= 1
    status, result = doctor(tmp_path)
    exception = finding(result, "exception")
    assert (status, exception["ranks"]) == (1, [1])
    assert "raised ValueError: bad batch (" in exception["text"]
    assert exception["evidence"]["exception"] == "ValueError"
    assert result["ranks"][1]["state"] == "failed"


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
