"""A rank that is lost, leaves or stays away: what MXNet's arrays say of it, and how soon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("workers") / "mxnet_ending.py"
LAUNCHER = [sys.executable, "-m", "horovod.runner.launch", "-np", "2"]

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed"),
]

ENDINGS = [  # how, and what the error says
    ("killed", r"rank 1 \(pid \d+ on localhost\) died"),
    ("leaves", r"rank 1 \(pid \d+ on localhost\) has shut down"),
    ("stays away", r"Missing ranks: 1"),
]


@pytest.mark.parametrize(("how", "text"), ENDINGS)
def test_who_waits_for_a_rank_gets_its_name(how, text):
    command = [*LAUNCHER, sys.executable, str(WORKER), how]
    environment = {**os.environ, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10"}
    job = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    pattern = r"\[0\]<stdout>:usable True after ([\d.]+) s, 2 errors: (.*)"
    found = re.search(pattern, job.stdout)
    assert found, job.stdout + job.stderr
    assert float(found[1]) < 60  # of a loaded machine
    assert "HorovodInternalError" in found[2]
    assert re.search(text, found[2])


def test_what_nobody_waits_for_makes_no_noise_at_the_end():
    script = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import mxnet as mx, horovod.mxnet as hvd\n"
        "hvd.init()\n"
        "hvd.allreduce(mx.nd.ones(3)).wait_to_read()\n"
        "if hvd.rank() == 0: kept = hvd.allgather(mx.nd.ones(3))\n"
    )
    command = [*LAUNCHER, sys.executable, "-c", script]
    job = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "MXNetError" not in job.stdout + job.stderr
