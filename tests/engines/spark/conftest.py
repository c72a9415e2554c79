"""A Spark cluster on this machine: two executors in JVMs of their own, with a core and a GPU each,
as far as Spark knows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

# Short jobs do not need all of Java's compilers.
os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"

_GPU = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["7"]}'
"""


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings: Spark leaves sockets open, and warns about newer pandas."""
    for ignored in (
        "ignore::ResourceWarning",
        "ignore:PySpark does not yet fully support pandas:FutureWarning",
    ):
        config.addinivalue_line("filterwarnings", ignored)


@pytest.fixture(scope="session")
def context(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkContext]:
    found_gpus = tmp_path_factory.mktemp("spark") / "found_gpus"
    found_gpus.write_text(_GPU)
    found_gpus.chmod(0o755)
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        builder = SparkSession.builder.master("local-cluster[2,1,1024]")
        for key, value in {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.resource.gpu.amount": "1",
            "spark.log.level": "OFF",
            "spark.task.maxFailures": "3",
            "spark.task.resource.gpu.amount": "1",
            "spark.ui.enabled": "false",
            "spark.worker.resource.gpu.amount": "1",
            "spark.worker.resource.gpu.discoveryScript": str(found_gpus),
        }.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        yield session.sparkContext
        session.stop()
