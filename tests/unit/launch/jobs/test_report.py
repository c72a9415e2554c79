"""The file of a report: refused early, written whole."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from horovod.launch.cli import main as cli
from horovod.launch.jobs.report import JobReport
from horovod.launch.model.argument_checks import writable_file
from horovod.launch.model.job_plan import JobOutcome
from horovod.trace.failures import RankFailure


def written(report: JobReport) -> list[str]:
    said: list[str] = []
    report.write({"report/x": b"nonsense"}, JobOutcome(1, "it broke\n"), said.append)
    return said


def test_a_whole_file_with_the_permissions_of_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    report = JobReport(path, ["python", "a b.py"])
    for text in ("rank 1 ended", "rank 1 ended; ending 1 process", "<b>"):
        report.note(text)
    (problem,) = written(report)
    assert problem.startswith("--report: the numbers of a process are left out: ValueError")
    text = path.read_text()
    assert "python &#39;a b.py&#39;" in text
    assert len(re.findall("rank 1 ended", text)) == 1
    assert "<td>&lt;b&gt;</td>" in text
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    assert os.listdir(tmp_path) == ["out.html"]


def test_the_exception_is_named_without_recordings(tmp_path: Path) -> None:
    raised = RankFailure(1, 1, ("last <line>",), "ValueError", "bad batch", "train.py", 19)
    outcome = JobOutcome(1, "it broke\n", failures=(raised,))
    report = JobReport(tmp_path / "out.html", ["x"], "job-7", tmp_path / "none")
    report.write({}, outcome, lambda text: None)
    text = (tmp_path / "out.html").read_text()
    assert "Rank 1 raised ValueError: bad batch (train.py:19)" in text
    assert "<pre>last &lt;line&gt;</pre>" in text


def test_a_folder_that_has_gone_costs_the_report_only(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    report = JobReport(writable_file("--report", folder / "out.html"), ["x"])
    folder.rmdir()
    assert (
        written(report)[-1]
        == f"--report {folder}/out.html: cannot be written: No such file or directory"
    )


def test_what_is_said_is_bounded(tmp_path: Path) -> None:
    report = JobReport(tmp_path / "out.html", ["x"])
    for number in range(1000):
        report.note(f"line {number}.")
    written(report)
    text = (tmp_path / "out.html").read_text()
    assert "line 0." in text
    assert "line 999." in text
    assert "line 500." not in text


@pytest.mark.parametrize("path", ["", "missing/out.html"])
def test_what_cannot_be_written_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(OSError, match=f"--report {tmp_path}/?{path}: "):
        writable_file("--report", tmp_path / path)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["-np", "1", "--mpi"], "--mpi"),
        (["-np", "1", "--kubernetes", "--kubernetes-image", "i"], "--kubernetes"),
        (["-f", "job.yml"], "--experiment"),
        (["--check-network"], "--check-network"),
    ],
)
def test_jobs_without_a_store_of_ours_have_none(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = [] if option in ("--experiment", "--check-network") else ["x"]
    with pytest.raises(SystemExit):
        cli.main([*words, "--report", str(tmp_path / "out.html"), *command], {})
    assert f"--report and {option}: a report is of one job" in capsys.readouterr().err
