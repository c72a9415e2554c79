"""Small programs with the deep import paths that programs of others use, on two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
RUN_SCRIPTS = Path(__file__).parents[1] / "support" / "run_scripts.py"


@pytest.mark.parametrize(
    "names", [["torch", "elastic"], ["tensorflow", "keras"], ["mxnet"]], ids=lambda names: names[0]
)
def test_programs(names: list[str]) -> None:
    """One job for those of a framework, which takes seconds to import."""
    framework = names[0]
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    programs = [PROGRAMS / f"{name}_program.py" for name in names]
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", "2"]
    job = subprocess.run(
        [*launcher, sys.executable, RUN_SCRIPTS, *programs],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("fine\n") == job.stdout.count("status 0 of ") == 2 * len(programs)
