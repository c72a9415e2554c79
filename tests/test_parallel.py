"""Runs the bodies in tests/parallel on 1 to 4 ranks, under our launcher."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PARALLEL = Path(__file__).parent / "parallel"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_on_ranks(ranks):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PARALLEL)]
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks)]
    job = subprocess.run(launcher + command, capture_output=True, text=True, timeout=380)
    assert job.returncode == 0, job.stdout[-20000:] + job.stderr[-5000:]
    passed = re.findall(r"\[(\d+)\]<stdout>:(\d+) passed", job.stdout)
    assert sorted(int(rank) for rank, _ in passed) == list(range(ranks))
    assert len({count for _, count in passed}) == 1
    print(f"{ranks} ranks: {passed[0][1]} passed on each")
