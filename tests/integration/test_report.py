"""The page of ``--report`` for jobs that succeed, fail, and change their size."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from elastic_jobs import Job, counts
from launching import run

pytestmark = pytest.mark.usefixtures("no_child_is_left")
WORKER = str(Path(__file__).with_name("workers") / "reported.py")


@pytest.fixture
def report(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "reports"
    folder.mkdir()
    yield folder / "out.html"
    assert os.listdir(folder) in (["out.html"], []), "nothing else is left"


def text_of(page: Path) -> str:
    """The data of the page."""
    return unescape(re.sub(r"<[^>]*>", " ", page.read_text().replace("<wbr>", "")))


def data_of(page: Path) -> Any:
    found = re.search(r'id="data">(.*?)</script>', page.read_text())
    assert found
    return json.loads(found[1])


def test_a_job_that_ends_well(report: Path) -> None:
    report.write_text("an earlier one")
    arguments = ["-np", "2", "--report", str(report), "--cycle-time-ms", "3"]
    env = {**os.environ, "HOROVOD_QUIET": "0"}
    status, _, err = run(*arguments, sys.executable, WORKER, env=env)
    assert status == 0, err
    rows = data_of(report)["rows"]
    assert [row["name"] for row in rows] == ["0", "1"]
    for row in rows:
        assert any(row["step"])
        assert any(row["rate"])
    text = text_of(report)
    assert "Training report finished" in re.sub(r"\s+", " ", text)
    assert "</script><b>grad" in text
    assert "allreduce float32 50" in re.sub(r"\s+", " ", text)
    assert re.search(r"HOROVOD_CYCLE_TIME\s+3\s+changed", text)
    assert data_of(report)["trials"] == [[1.5e9, True]]
    assert data_of(report)["logged"] == ["loss"]
    assert set(data_of(report)["rows"][1]["logged"][0]) <= {1.5, None}
    assert any(data_of(report)["rows"][1]["samples"])
    assert "Findings" in text
    assert err.splitlines()[-1] == f"horovodrun: report: {report}"


def test_the_last_that_a_killed_rank_has_told(report: Path) -> None:
    status, _, err = run("-np", "2", "--report", str(report), sys.executable, WORKER, "kill")
    assert status == 1, err
    assert any(data_of(report)["rows"][1]["step"])
    text = text_of(report)
    assert "failed, exit status 1" in text
    assert re.search(r"rank 1 on localhost \(pid \d+\) was ended by SIGKILL", text)


@pytest.mark.parametrize("path", ["missing/out.html", "."])
def test_what_cannot_be_written_is_refused_before_the_start(tmp_path: Path, path: str) -> None:
    mark = tmp_path / "started"
    status, _, err = run("-np", "1", "--report", str(tmp_path / path), "touch", str(mark))
    assert status == 2
    assert f"--report {(tmp_path / path)}: " in err
    assert not mark.exists()


def test_workers_that_join_and_leave(report: Path, tmp_path: Path) -> None:
    options = ("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "1", "2")
    job = Job(tmp_path, *options, "--report", str(report))
    try:
        job.watch(0, lambda history: counts(history, 2) > 3)
        job.line("started rank 1")
        os.kill(job.pids[1], signal.SIGKILL)
        job.line("world 3 has 2 workers")
        job.watch(0, lambda history: counts(history, 1) > 3 and counts(history, 2) > 10)
        status, output = job.end()
        assert status == 0, output
    finally:
        job.process.kill()
        job.process.communicate()
    assert len(data_of(report)["rows"]) == 3
    text = text_of(report)
    assert "a world of 1 process began, after 2 processes" in text
    assert "a world of 2 processes began, after 1 process" in text
    assert "rank 1 was lost" in text
