"""Accelerate, Hugging Face's Trainer and Lightning on the backend ``horovod``: as on Gloo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "torch_distributed"
ON_BOTH = Path(__file__).with_name("workers") / "on_both.py"
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "horovodrun": ["-m", "horovod.runner.launch", "-np", "2", sys.executable],
}
RESULT = re.compile(r"loss (\d\.\d{5}), accuracy (\d\.\d{3})")


@pytest.mark.parametrize(
    ("launcher", "script"),
    [
        ("torchrun", "accelerate_digits.py"),
        ("horovodrun", "huggingface_trainer.py"),
        ("horovodrun", "lightning_ddp.py"),
    ],
)
def test_losses_are_those_on_gloo(launcher: str, script: str) -> None:
    job = subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], str(ON_BOTH), str(EXAMPLES / script)],
        capture_output=True,
        text=True,
        timeout=580,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert job.returncode == 0, job.stdout + job.stderr[-5000:]
    ours, _, theirs = job.stdout.partition("on gloo")
    assert "on horovod" in ours
    results = RESULT.findall(ours)
    assert float(results[-1][1]) > 0.9
    assert results == RESULT.findall(theirs)
