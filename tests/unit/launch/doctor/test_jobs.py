"""Which job the doctor looks at, and what it finds of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from foreign_files import mark_job

import horovod.numpy as hvd
from horovod.launch.cli.main import main
from horovod.launch.doctor import jobs
from horovod.launch.doctor.jobs import NothingFoundError, find_job, gather
from horovod.launch.jobs.report import new_job_id, outcome_writer, with_job_id
from horovod.launch.model.job_plan import ElasticPlan, JobOutcome, JobPlan, Limits
from horovod.launch.remote.job_folder import check_job_id
from horovod.trace.presence import own_presence

WORLD = {"world": "1", "ranks": ["rank 0", "rank 1"]}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the recording of job-7, of one rank."""
    monkeypatch.setenv("HOROVOD_RECORDER_DIR", str(tmp_path))
    monkeypatch.setenv("HOROVOD_JOB_ID", "job-7")
    hvd.init()
    for _ in range(20):
        hvd.allreduce(np.ones(3), name="x")
    hvd.shutdown()
    monkeypatch.delenv("HOROVOD_JOB_ID")
    return tmp_path


def test_a_job_is_found_by_id_by_folder_or_as_the_newest(base: Path) -> None:
    environ = {"HOROVOD_RECORDER_DIR": str(base)}
    (base / "empty").mkdir()
    (base / "older").mkdir()
    (base / "older" / "x.hvdrec").write_bytes(b"")
    os.utime(base / "older", (1, 1))
    for job in ("", "job-7", str(base / "job-7"), str(base)):
        assert find_job(job, environ) == base / "job-7"
    assert find_job("older", environ) == base / "older"


def test_a_users_folder_is_not_the_newest_job(base: Path) -> None:
    environ = {"HOROVOD_RECORDER_DIR": str(base)}
    mine = base / "mine"
    mine.mkdir(mode=0o700)
    (mine / "model.running").write_text("words")
    for job in ("", str(base)):
        assert find_job(job, environ) == base / "job-7"
    with pytest.raises(NothingFoundError, match=r"there: job-7$"):
        find_job("fred", environ)
    assert find_job(str(mine), environ) == mine  # perhaps a copy


def test_where_there_is_nothing_the_text_says_where_it_was_looked_for(base: Path) -> None:
    environ = {"HOROVOD_RECORDER_DIR": str(base)}
    with pytest.raises(NothingFoundError, match=r"no recordings of job fred .* there: job-7"):
        find_job("fred", environ)
    with pytest.raises(NothingFoundError, match="off"):
        find_job("", {"HOROVOD_RECORDER_DIR": "off"})
    with pytest.raises(NothingFoundError, match="nowhere"):
        find_job("", {"HOROVOD_RECORDER_DIR": str(base / "nowhere")})
    (base / "job-7" / "rank-0-pid-1-world-1-end.hvdrec").write_bytes(b"{}\n")
    assert "not a recorder file" in gather(base / "job-7").problems[0]


def test_ranks_that_do_not_answer_are_not_waited_for_for_long(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_ANSWER_S", 0.05)
    folder = mark_job(base / "silent")
    (folder / "rank-1-pid-1-world-1.running").write_text(own_presence(1, "rank 1 (x)", WORLD, 0))
    with pytest.raises(NothingFoundError, match=r"none of these answers: rank 1 \(x\)"):
        gather(folder)
    assert (folder / "wanted").read_text()
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="open to others"):
        gather(folder)


def test_the_command_and_its_exit_status(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"HOROVOD_RECORDER_DIR": str(base)}
    assert main(["--doctor"], environ) == 0
    assert "Job job-7: 1 rank, last heard of" in capsys.readouterr().out
    assert main(["--doctor", "job-7", "--json"], environ) == 0
    assert json.loads(capsys.readouterr().out)["is_healthy"]
    assert main(["--json", "--doctor", str(base / "job-7")], environ) == 0
    assert json.loads(capsys.readouterr().out)["job"] == "job-7"
    assert main(["--doctor", "fred"], environ) == 2
    assert "no recordings of job fred" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--doctor"],
        ["--doctor", "--json"],
        ["--check-build"],
        ["--help"],
        ["--slurm-script", "-np", "2", "true"],
        ["--simulate", "2", "--model", "resnet50", "--samples-per-second", "9"],
    ],
)
def test_who_reads_a_part_only_gets_no_traceback(base: Path, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "horovod.runner.launch", *words]
    with open(writer, "wb") as closed:
        ended = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=500)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize(
    "words", [["-np", "2", "--doctor"], ["--doctor", "a", "b"], ["--doctor", "a", "--verbose"]]
)
def test_what_does_not_go_with_the_doctor_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words, {})
    assert caught.value.code == 2


def test_ids_of_jobs_are_names_and_differ() -> None:
    ids = {new_job_id(0) for _ in range(20)}
    assert len(ids) > 15
    for job_id in ids:
        assert check_job_id(job_id) == job_id


def test_where_the_id_of_a_job_comes_from() -> None:
    plan = JobPlan(("x",), ())
    chosen = JobPlan(("x",), (), {"HOROVOD_JOB_ID": "a", "B": "c"})
    limits = Limits(1, 1, None, None, 600.0, None)
    elastic = JobPlan(("x",), elastic=ElasticPlan(limits, job_id="e"))

    def of(plan: JobPlan, **environ: str) -> str:
        return with_job_id(plan, environ).extra_environment["HOROVOD_JOB_ID"]

    assert of(chosen, HOROVOD_JOB_ID="b") == "a"
    assert of(plan, HOROVOD_JOB_ID="b") == "b"
    assert of(elastic, HOROVOD_JOB_ID="b") == "e"
    assert with_job_id(elastic, {}) == with_job_id(elastic, {})  # another driver takes it over
    inside = of(plan, HOROVOD_JOB_ID="b", HOROVOD_RANK="0")
    assert inside not in ("a", "b", "e")


def test_the_outcome_is_left_beside_recordings_and_said_if_it_is_bad(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"HOROVOD_RECORDER_DIR": str(base)}
    plan = JobPlan(("x",), (), {"HOROVOD_JOB_ID": "job-7"})
    failure = JobOutcome(1, "rank 0 exited with code 1\n")
    assert outcome_writer(plan, environ)(JobOutcome(0)) == ""
    assert main(["--doctor"], environ) == 0
    words = outcome_writer(plan, environ)(failure)
    assert words == "what every rank did last: horovodrun --doctor job-7"
    capsys.readouterr()
    assert main(["--doctor"], environ) == 1
    out = capsys.readouterr().out
    assert "PROBLEM  horovodrun ended with status 1." in out
    assert "rank 0 exited with code 1" in out
    for path in (base / "job-7").iterdir():
        os.utime(path, (1, 1))
    assert outcome_writer(plan, environ)(failure) == ""  # of a job before
    assert outcome_writer(plan, {"HOROVOD_RECORDER_DIR": "off"})(failure) == ""
    assert outcome_writer(JobPlan(("x",), ()), environ)(failure) == ""
