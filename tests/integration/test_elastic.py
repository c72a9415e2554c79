"""Elastic training that cannot make a new world ends and names the missing rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("workers") / "elastic_leaver.py"


def run(way: str) -> tuple[int, str]:
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", "3"]
    job = subprocess.run(
        [*launcher, sys.executable, str(WORKER), way],
        env={**os.environ, "HOROVOD_START_TIMEOUT": "10"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    return job.returncode, job.stderr


def test_a_rank_that_ends_early_is_named():
    status, err = run("ends")
    assert status != 0
    assert "going back to the last commit and starting again" in err
    assert "InitError: init: rank 2 of 3 " in err


def test_a_rank_that_dies_ends_the_job():
    status, err = run("dies")
    assert status != 0
    assert "rank 2" in err
    assert "SIGKILL" in err
