"""A compute job and a training job under horovodrun that find each other through a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

TRAINER = Path(__file__).with_name("workers") / "data_service_trainer.py"
LAUNCHER = [sys.executable, "-m", "horovod.runner.launch", "-np"]
SERVE = [sys.executable, "-m", "horovod.tensorflow.data.compute_worker"]
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
TIMEOUT_S = 500
WHOLE = [2 * number for number in range(100)]


def train(config: Path, worker_count: int, options: str, mode: str) -> list[list[int]]:
    """The numbers that each of two training ranks got from the compute workers."""
    with subprocess.Popen(
        [*LAUNCHER, str(worker_count), *SERVE, str(config), *options.split()],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as compute:
        try:
            job = subprocess.run(
                [*LAUNCHER, "2", sys.executable, str(TRAINER), str(config), mode],
                env=ENVIRONMENT,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
            assert job.returncode == 0, job.stdout + job.stderr
            served, _ = compute.communicate(timeout=TIMEOUT_S)
        finally:
            compute.terminate()
    assert compute.returncode == 0, served
    (line,) = job.stdout.splitlines()
    return json.loads(line.partition(":")[2])  # type: ignore[no-any-return]


@pytest.mark.usefixtures("nothing_is_left")
def test_two_ranks_read_each_element_once(tmp_path: Path) -> None:
    numbers = train(tmp_path / "config.json", 2, "--dispatcher-side compute", "send")
    assert sorted(numbers[0] + numbers[1]) == WHOLE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_is_left")
def test_a_dispatcher_each_gives_every_rank_the_whole_dataset(tmp_path: Path) -> None:
    options = "--dispatchers 2 --dispatcher-side training"
    numbers = train(tmp_path / "config.json", 2, options, "service")
    assert [sorted(own) for own in numbers] == [WHOLE, WHOLE]


@pytest.mark.usefixtures("nothing_is_left")
def test_ranks_take_turns(tmp_path: Path) -> None:
    numbers = train(tmp_path / "config.json", 1, "", "turns")
    assert sorted(numbers[0] + numbers[1]) == [2 * number for number in range(20)]
    assert {number % 4 for number in numbers[0]} == {0}
    assert {number % 4 for number in numbers[1]} == {2}
