"""The numbers in TensorBoard, Weights & Biases (offline) and MLflow (files), with the libraries."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import horovod.numpy as hvd
from horovod.trackers import MlflowLogger, TensorBoardWriter, Tracker, WandbLogger

pytestmark = pytest.mark.filterwarnings("ignore")
PAGE = Path(__file__).parents[3] / "docs" / "observability.md"
NAME = "horovod/allreduce_bytes"


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A world of one rank, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    hvd.init()
    yield
    hvd.shutdown()


def train(tracker: Tracker) -> list[float]:
    """Four steps, of which the second and the fourth are sent; the bytes counted by then."""
    counts = []
    for _ in range(4):
        hvd.allreduce(np.ones(10), name="gradient")
        counts.append(hvd.metrics()["allreduce_bytes"])
        tracker.step()
    tracker.close()
    return counts[1::2]


def scalars(folder: Path) -> list[tuple[int, float]]:
    """What TensorBoard reads: steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload().Tensors(NAME)
    return [(event.step, event.tensor_proto.float_val[0]) for event in events]


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With TensorFlow, which is installed here, TensorBoard would import it: a few seconds.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    sent = train(TensorBoardWriter(tmp_path / "mine", every=2))
    assert scalars(tmp_path / "mine") == [*zip((2, 4), sent, strict=True)]

    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = [code for code in blocks if "TensorBoardWriter" in code]
    exec(compile(code, "observability.md", "exec"), {})
    assert [step for step, _ in scalars(tmp_path / "logs")] == [5, 10]


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    run: Any = wandb.init(project="digits", mode="offline", dir=tmp_path)
    sent = train(WandbLogger(every=2))
    assert (run.summary[NAME], run.summary["horovod/step"]) == (sent[1], 4)
    run.finish()  # it is the program's: the logger has left it open
    wandb.teardown()  # a process of its own writes the file, and has ended then
    (written,) = tmp_path.rglob("*.wandb")
    assert NAME.encode() in written.read_bytes()


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    import mlflow

    sent = train(MlflowLogger(start_run={"run_name": "digits"}, every=2))
    assert mlflow.active_run() is None
    (run,) = mlflow.search_runs(output_format="list")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, NAME)
    assert [(each.step, each.value) for each in history] == [*zip((2, 4), sent, strict=True)]
