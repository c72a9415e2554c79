"""DiLoCo in an elastic job: a rank is killed while fragments are on their way, and one joins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from example_jobs import HOROVODRUN

pytest.importorskip("torch")

WORKER = Path(__file__).with_name("workers") / "elastic_local_steps.py"
START = re.compile(
    r"start: new (\w+), step (\d+), size (\d), inner state of (\d+), agreed (\w+), "
    r"sum of agreed (\S+)"
)


def test_a_killed_rank_comes_back_to_the_agreed_parameters(tmp_path: Path) -> None:
    launcher = ("-np", "3", "--min-np", "2", "--max-np", "3")
    cooldown = ("--blacklist-cooldown-range", "1", "1")
    job = subprocess.run(
        [HOROVODRUN, *launcher, *cooldown, sys.executable, str(WORKER), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    starts = [match.groups() for match in START.finditer(job.stdout)]
    joined = [start for start in starts if start[0] == "True" and start[1] != "0"]
    stayed = [start for start in starts if start[0] == "False"]
    assert len(joined) == 1, job.stdout
    assert joined[0][2:5] == ("3", "0", "True")  # no inner state, the agreed parameters
    assert "2 of 2 parts of the state came before this process joined" in job.stdout
    assert len(stayed) >= 2
    for start in stayed:  # they go on with what they have
        assert start[3:5] == ("4", "False")
    same = {start[5] for start in starts if start[1] == joined[0][1] and start[2] == "3"}
    assert same == {joined[0][5]}
    ends = re.findall(r"end: size 3, sum of parameters (\S+)", job.stdout)
    assert len(ends) == 3
    assert len(set(ends)) == 1
