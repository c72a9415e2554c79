"""Lost ranks, lost links and stopped ranks: what the other ranks of all hosts report."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lab import Lab
from ranks import Job

DETECTION_S = 20.0  # for a loaded machine; below every timeout that could end the wait
LIMIT_S = 10  # of the data plane, where a test sets it
SHUTDOWN_S = 10  # of a stall


def assert_all_report(
    reports: dict[int, Any], kind: str, texts: Sequence[str], since: float, limit_s: float
) -> None:
    """Every error is of this kind, has one of the texts and came within the limit."""
    for rank, report in reports.items():
        for error in (report["error"], report["later"]):
            assert error is not None, (rank, report)
            assert error["type"] == kind, (rank, error)
            assert any(text in error["text"] for text in texts), (rank, error)
        seconds = report["error"]["time"] - since
        print(f"rank {rank} after {seconds:.2f} s: {report['error']['text']}")
        assert seconds < limit_s


def finish(lab: Lab, job: Job, survivors: Sequence[int]) -> None:
    """Let the survivors leave; they must end with 0."""
    lab.leave("leave")
    statuses = job.wait(timeout_s=500)
    assert [statuses[rank] for rank in survivors] == [0] * len(survivors), job.told()


@pytest.mark.parametrize("script", [("steady.py", "16384", "100000"), ("idle.py",)], ids=str)
@pytest.mark.parametrize("victim", [0, 2, 3])
def test_a_killed_rank_is_named_on_all_hosts(
    lab: Lab, victim: int, script: tuple[str, ...]
) -> None:
    """Rank 0 coordinates all, rank 2 leads its host, rank 3 does neither."""
    job = lab.start_worker((2, 2), *script)
    pids = lab.read_from(range(4), "ready", job)
    killed = time.monotonic()
    job.ranks[victim].signal(signal.SIGKILL)
    lab.leave("go")
    survivors = [rank for rank in range(4) if rank != victim]
    reports = lab.read_from(survivors, "report", job)
    text = f"rank {victim} (pid {pids[victim]} on host{victim // 2})"
    assert_all_report(reports, "PeerLostError", [text], killed, DETECTION_S)
    finish(lab, job, survivors)


@pytest.mark.parametrize("words", [(), ("fork",)], ids=["alone", "with a forked child"])
def test_a_killed_rank_of_three_hosts(lab: Lab, words: tuple[str, ...]) -> None:
    """A child that outlives its rank keeps none of its connections open."""
    job = lab.start_worker((1, 1, 1), "steady.py", "16384", "100000", *words)
    pids = lab.read_from(range(3), "ready", job)
    killed = time.monotonic()
    job.ranks[1].signal(signal.SIGKILL)
    reports = lab.read_from((0, 2), "report", job)
    text = f"rank 1 (pid {pids[1]} on host1)"
    assert_all_report(reports, "PeerLostError", [text], killed, DETECTION_S)
    finish(lab, job, (0, 2))


@pytest.mark.parametrize("victim", [1, 2])
def test_a_rank_dies_while_a_message_of_any_rank_is_awaited(
    lab: Lab, tmp_path: Path, victim: int
) -> None:
    """It never connected with the rank that waits, and nothing else is under way."""
    job = lab.start_worker((1, 2), "any_source.py", str(tmp_path / "store"))
    pids = lab.read_from(range(3), "ready", job)
    killed = time.monotonic()
    job.ranks[victim].signal(signal.SIGKILL)
    reports = lab.read_from([0], "report", job)
    text = f"rank {victim} (pid {pids[victim]} on host1)"
    assert_all_report(reports, "PeerLostError", [text], killed, DETECTION_S)
    finish(lab, job, [rank for rank in range(3) if rank != victim])


@pytest.mark.parametrize("ranks_per_host", [(1, 1), (2, 1), (1, 1, 1)])
def test_a_link_that_breaks_in_mid_collective(lab: Lab, ranks_per_host: tuple[int, ...]) -> None:
    network = lab.open(len(ranks_per_host))
    limit = {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(LIMIT_S)}
    job = lab.start_worker(ranks_per_host, "steady.py", "16384", "100000", environment=limit)
    ranks = range(sum(ranks_per_host))
    lab.read_from(ranks, "ready", job)
    broken = time.monotonic()
    network.disconnect(lab.hosts[1])
    reports = lab.read_from(ranks, "report", job)
    lonely = ranks_per_host[0]  # on host1
    here = {lonely: reports[lonely]}
    there = {rank: report for rank, report in reports.items() if rank != lonely}
    assert_all_report(there, "PeerLostError", ["host1"], broken, LIMIT_S + DETECTION_S)
    others = [host.name for host in lab.hosts if host.name != "host1"]
    assert_all_report(here, "PeerLostError", others, broken, LIMIT_S + DETECTION_S)
    finish(lab, job, list(ranks))


@pytest.mark.parametrize("victim", [1, 2])
def test_a_stopped_rank_is_a_stall_everywhere(lab: Lab, victim: int) -> None:
    times = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(SHUTDOWN_S),
    }
    job = lab.start_worker((1, 2), "steady.py", "16384", "100000", environment=times)
    pids = lab.read_from(range(3), "ready", job)
    stopped = time.monotonic()
    job.ranks[victim].signal(signal.SIGSTOP)
    survivors = [rank for rank in range(3) if rank != victim]
    reports = lab.read_from(survivors, "report", job)
    name = f"rank {victim} (pid {pids[victim]} on host1)"
    near = {rank: reports[rank] for rank in survivors if rank > 0}
    texts = [f"{name} has not moved for", f"Missing ranks: {victim} ({name}"]
    assert_all_report(near, "StallError", texts, stopped, SHUTDOWN_S + DETECTION_S)
    # News of a host comes from its first rank. If that rank is stopped, others learn only that
    # the ranks behind it are gone.
    kind = "PeerLostError" if victim == 1 else "StallError"
    assert_all_report({0: reports[0]}, kind, ["on host1)"], stopped, SHUTDOWN_S + DETECTION_S)
    assert any(name in job.ranks[rank].errors for rank in survivors)  # the warning


def test_a_rank_that_never_submits(lab: Lab) -> None:
    times = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(SHUTDOWN_S),
    }
    job = lab.start_worker((2, 1), "stopped_rank.py", "silence", environment=times)
    reports = lab.read_from(range(3), "report", job)
    for rank in range(2):
        (error,) = reports[rank]["errors"]
        assert error["type"] == "StallError"
        assert "allreduce 'lonely' waits" in error["text"]
        assert "Missing ranks: 2 (rank 2 (pid " in error["text"]
        assert " on host1)" in error["text"]
        assert SHUTDOWN_S - 0.1 < reports[rank]["seconds"] < SHUTDOWN_S + DETECTION_S
    assert "'lonely'" in reports[2]["errors"][0]["text"]
    job.check(timeout_s=500)
