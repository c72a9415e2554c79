"""A rank that is lost, leaves, stays away or is interrupted: what TensorFlow's operations raise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("workers") / "tensorflow_ending.py"
LAUNCHER = [sys.executable, "-m", "horovod.runner.launch", "-np", "2"]
LIMIT_S = 60  # of a loaded machine; nothing but the end of the wait comes before it

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

ENDINGS = [  # with native operations or without, how, and what the error says
    ("1", "killed", r"rank 1 \(pid \d+ on localhost\) died"),
    ("0", "killed", r"rank 1 \(pid \d+ on localhost\) died"),
    ("1", "leaves", r"rank 1 \(pid \d+ on localhost\) has shut down"),
    ("1", "stays away", r"Missing ranks: 1"),
]


def ending(how: str, **settings: str) -> tuple[str, float, str]:
    """What rank 0 says: the class of the error, after how many seconds, its text."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **settings}
    command = [*LAUNCHER, sys.executable, str(WORKER), how]
    job = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    found = re.search(r"\[0\]<stdout>:(\w+) after ([\d.]+) s: (.*)", job.stdout)
    assert found, job.stdout + job.stderr
    return found[1], float(found[2]), found[3]


@pytest.mark.parametrize(("native", "how", "text"), ENDINGS)
def test_a_function_that_waits_for_a_rank_names_it(native, how, text):
    # On a loaded machine one rank takes seconds longer to trace than the other.
    found = ending(
        how,
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="10",
        HOROVOD_TENSORFLOW_NATIVE_OPS=native,
    )
    assert found[0] == "UnknownError"
    assert found[1] < LIMIT_S
    assert re.search(text, found[2])


@pytest.mark.parametrize("native", ["1", "0"])
def test_ctrl_c_ends_an_eager_collective(native):
    error, seconds, _ = ending("interrupt", HOROVOD_TENSORFLOW_NATIVE_OPS=native)
    assert error == "KeyboardInterrupt"
    assert seconds < LIMIT_S
