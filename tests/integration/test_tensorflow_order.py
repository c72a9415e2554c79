"""TensorFlow jobs with a chosen number of threads, which must be set before TensorFlow starts."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

LAUNCHER = [sys.executable, "-m", "horovod.runner.launch"]
WORKERS = Path(__file__).with_name("workers")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "30"}


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
@pytest.mark.parametrize("ranks", [2, 3])
def test_another_order_on_every_rank_with_one_thread(ranks):
    command = [*LAUNCHER, "-np", str(ranks), sys.executable, WORKERS / "tensorflow_order.py"]
    job = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env={**os.environ, **QUIET}
    )
    if job.returncode == 77:
        pytest.skip("the native operations do not work with this TensorFlow")
    assert job.returncode == 0, job.stdout[-5000:] + job.stderr[-5000:]
    for rank in range(ranks):
        assert f"rank {rank} is done" in job.stdout
