"""tf.data service with compute workers on Spark, started by ``spark-submit``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from horovod.spark.tensorflow import compute_worker

TRAINER = Path(__file__).parents[2] / "integration" / "workers" / "data_service_trainer.py"
SUBMIT = [os.path.join(sysconfig.get_path("scripts"), "spark-submit"), "--master", "local[2]"]
LAUNCHER = [sys.executable, "-m", "horovod.runner.launch", "-np", "2"]
TIMEOUT_S = 500


def test_workers_on_spark_serve_a_training_job(java: None, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    program = compute_worker.__file__
    with subprocess.Popen(
        [*SUBMIT, program, str(config), "--num-proc", "2"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as compute:
        try:
            job = subprocess.run(
                [*LAUNCHER, sys.executable, str(TRAINER), str(config), "send"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
            assert job.returncode == 0, job.stdout + job.stderr
            served, _ = compute.communicate(timeout=TIMEOUT_S)
        finally:
            compute.terminate()
    assert compute.returncode == 0, served
    numbers = json.loads(job.stdout.partition(":")[2])
    assert sorted(numbers[0] + numbers[1]) == list(range(0, 200, 2))
    assert not config.exists()


def test_workers_have_dispatchers_in_equal_parts(context: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"2 compute worker\(s\) for 3 dispatcher\(s\)"):
        compute_worker.main(3, "compute", 60, tmp_path / "config.json", num_proc=2)
