"""A rank that is lost, leaves or stays away: what compiled programs of JAX get, and how soon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("workers") / "jax_ending.py"
LAUNCHER = [sys.executable, "-m", "horovod.runner.launch", "-np", "2"]

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed"),
]

ENDINGS = [  # with native operations or without, how, and what the error says
    ("1", "killed", r"rank 1 \(pid \d+ on localhost\) died"),
    ("0", "killed", r"rank 1 \(pid \d+ on localhost\) died"),
    ("1", "leaves", r"rank 1 \(pid \d+ on localhost\) has shut down"),
    ("1", "stays away", r"Missing ranks: 1"),
]


@pytest.mark.parametrize(("native", "how", "text"), ENDINGS)
def test_a_program_that_waits_for_a_rank_names_it(native, how, text):
    # One rank can take seconds longer to compile than the other.
    settings = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10", "HOROVOD_JAX_NATIVE_OPS": native}
    command = [*LAUNCHER, sys.executable, str(WORKER), how]
    environment = {**os.environ, **settings}
    job = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    found = re.search(r"\[0\]<stdout>:usable True after ([\d.]+) s: (.*)", job.stdout)
    assert found, job.stdout + job.stderr
    assert float(found[1]) < 60  # of a loaded machine
    assert "HorovodInternalError" in found[2]
    assert re.search(text, found[2])
