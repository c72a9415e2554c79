"""The examples of estimators run and learn."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "spark"


def _is_good(output: str) -> bool:
    accuracy = re.search(r"accuracy on test rows: ([\d.]+)", output)
    errors = re.search(r"error of the forecast: ([\d.]+), of the usual sales: ([\d.]+)", output)
    if errors:
        return float(errors[1]) < 0.7 * float(errors[2])
    return accuracy is not None and float(accuracy[1]) > 0.8


def test_an_example_is_a_program_that_ends_with_predictions(java: None) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "torch_estimator.py"), "--epochs", "5"],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert _is_good(run.stdout), run.stdout


def test_a_trainer_of_lightning_learns_on_two_ranks() -> None:
    script = EXAMPLES.parent / "lightning" / "digits.py"
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", "2"]
    run = subprocess.run(
        [*launcher, sys.executable, str(script), "--epochs", "4"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    assert "weights are bitwise equal on all 2 rank(s)" in run.stdout


# In this process: separate programs and jobs would test nothing more.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("keras_estimator", "--epochs 3"),
        ("lightning_estimator", "--epochs 5"),
        ("rossmann", "--epochs 4 --shops 10"),
    ],
)
def test_the_other_examples_learn_too(
    spark: Any,
    here: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    options: str,
) -> None:
    path = str(EXAMPLES / f"{script}.py")
    monkeypatch.setattr(sys, "argv", [path, *options.split()])
    monkeypatch.setattr("horovod.spark.common.estimator.SparkBackend", lambda num_proc: here)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    runpy.run_path(path, run_name="__main__")
    assert _is_good(capsys.readouterr().out)
