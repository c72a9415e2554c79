"""Separate drivers, on Spark in one JVM with two cores (``local[2]``)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import spark_workers
from engine_processes import assert_end, pids_in

pytestmark = pytest.mark.usefixtures("java")

EXAMPLE = Path(__file__).parents[3] / "examples" / "spark" / "run.py"
ENVIRONMENT = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

# With dynamic allocation Spark has no barrier mode.
DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from pyspark import SparkConf, SparkContext
import horovod.spark
import spark_workers

conf = SparkConf().setMaster("local[2]").set("spark.ui.enabled", "false")
SparkContext(conf=conf.set("spark.dynamicAllocation.enabled", "true"))
horovod.spark.run(spark_workers.hang, (sys.argv[2],))
"""


def test_the_example() -> None:
    words = [sys.executable, EXAMPLE, "--master", "local[2]", "--epochs", "5"]
    found = subprocess.run(
        words, capture_output=True, text=True, timeout=500, env={**os.environ, **ENVIRONMENT}
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "weights are bitwise equal on 2 process(es)" in found.stdout
    assert "[1]<stdout>:epoch 4: loss" in found.stdout


def test_a_driver_that_dies_leaves_no_worker(tmp_path: Path) -> None:
    support = str(Path(spark_workers.__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, support, tmp_path],
        env={**os.environ, **ENVIRONMENT},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as driver:
        try:
            pids = pids_in(tmp_path, 2, lambda: driver.poll() is not None)
            driver.kill()
            assert_end(pids)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)  # Spark's JVM
