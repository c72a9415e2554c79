"""A Spark session of this machine, and the digits as a DataFrame."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import horovod.torch as hvd

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
# Short jobs do not need all of Java's compilers.
os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of Spark and Keras about newer packages."""
    for ignored in (
        "ignore:PySpark does not yet fully support pandas:FutureWarning",
        "ignore::DeprecationWarning:pyspark",
        "ignore::ResourceWarning",
    ):
        config.addinivalue_line("filterwarnings", ignored)


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[Any]:
    """A Spark session with two cores."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def digits(spark: Any) -> Any:
    """600 digits in unequal partitions: vectors dense and sparse, an array, a weight, a flag."""
    from pyspark.ml.linalg import Vectors
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = []
    for number, (image, label) in enumerate(zip(images[:600] / 16, labels, strict=False)):
        image = image.tolist()
        filled = {place: value for place, value in enumerate(image) if value}
        mixed = Vectors.sparse(64, filled) if number % 2 else Vectors.dense(image)
        weight, is_val = 1.0 + number % 2, number % 5 == 0
        rows.append((mixed, image, float(np.mean(image)), int(label), weight, is_val))
    names = ["features", "pixels", "mean", "label", "weight", "is_val"]
    sparks = [spark.createDataFrame(part, names).coalesce(1) for part in (rows[:590], rows[590:])]
    return sparks[0].union(sparks[1]).cache()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty store."""
    from horovod.spark.common.store import Store

    return Store.create(str(tmp_path / "store"))


@pytest.fixture(scope="session")
def here() -> Any:
    """A user's backend with one process, this one."""
    from horovod.spark.common.backend import Backend

    class Here(Backend):
        def run(self, fn: Any, args: Any = (), kwargs: Any = None, env: Any = None) -> list[Any]:
            # Warnings of frameworks are no errors in a job's processes, too.
            with mock.patch.dict(os.environ, env or {}), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    return [fn(*args, **(kwargs or {}))]
                finally:
                    hvd.shutdown()

        def num_processes(self) -> int:
            return 1

    return Here()


@pytest.fixture
def accuracy_of(digits: Any) -> Any:
    """A function that returns a model's accuracy on some digits."""

    def function(model: Any) -> float:
        rows = model.transform(digits.limit(300)).select("label", "label__output").collect()
        hits = [int(np.argmax(row["label__output"].toArray())) == row["label"] for row in rows]
        return sum(hits) / len(hits)

    return function
