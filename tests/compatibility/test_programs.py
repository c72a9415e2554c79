"""Small programs with the deep import paths that programs of others use, on two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("framework", ["torch", "elastic", "tensorflow", "keras", "mxnet"])
def test_program(framework: str) -> None:
    needed = {"elastic": "torch"}.get(framework, framework)
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    program = PROGRAMS / f"{framework}_program.py"
    job = subprocess.run(
        [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable, program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("fine") == 2
