"""Lightning's ``Trainer`` on two ranks, of both packages, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("workers") / "trainer.py"
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "lightning.md"
LAUNCHER = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from horovod.lightning.strategy import HorovodStrategy, device_of


def output_of(folder: Path, *words: str) -> str:
    job = subprocess.run(
        [*LAUNCHER, str(WORKER), *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert job.returncode == 0, job.stdout + job.stderr[-3000:]
    return job.stdout


def test_ranks_train_go_on_from_a_checkpoint_and_run_the_page(tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(PAGE.read_text().partition("```python\n")[2].partition("```")[0])
    output = output_of(tmp_path, "lightning.pytorch", str(tmp_path), str(program))
    assert output.count("fine") == 2
    assert output.count("loss of all ranks") == 1


def test_the_other_package(tmp_path: Path) -> None:
    assert output_of(tmp_path, "pytorch_lightning", str(tmp_path)).count("fine") == 2


def test_the_path_below_spark_is_the_same_class() -> None:
    assert import_module("horovod.spark.lightning.strategy").HorovodStrategy is HorovodStrategy


def test_each_rank_has_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    gpus = [torch.device("cuda", index) for index in range(4)]
    assert device_of(gpus, 2) == gpus[2]
    assert device_of(gpus[:1], 3) == gpus[3]  # devices=1, of each process
    assert device_of(gpus[:1], 5) == gpus[1]  # ranks share a GPU
    assert device_of(gpus[3:], 0) == gpus[3]  # devices=[3]
    assert device_of(gpus[1:3], 1) == gpus[2]
    assert device_of([torch.device("cpu")] * 2, 1) == torch.device("cpu")
    assert device_of([], 0) == torch.device("cpu")
