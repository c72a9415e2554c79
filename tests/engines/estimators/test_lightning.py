"""The Lightning ``TorchEstimator`` on Spark."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl

    from horovod.spark.lightning import TorchEstimator, TorchModel


class Digits(pl.LightningModule):
    """A module with its own steps, metrics and schedule."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, features: torch.Tensor) -> Any:
        return self.net(features)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = cross_entropy(self(batch["features"]), batch["label"])
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores = self(batch["features"])
        self.log("val_accuracy", (scores.argmax(1) == batch["label"]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 4)]


class OwnData(pl.LightningDataModule):
    """Two batches that are not in the DataFrame."""

    def __init__(self, train_batch_size: int, cur_shard: int, **others: Any) -> None:
        super().__init__()
        self._rows = train_batch_size + cur_shard

    def train_dataloader(self) -> Any:
        batch = {"features": torch.zeros(self._rows, 64), "label": torch.full((self._rows,), 3)}
        return torch.utils.data.DataLoader([batch, batch], batch_size=None)


def _estimator(store: Any, model: Any, **changes: Any) -> TorchEstimator:
    options = {
        "num_proc": 2,
        "store": store,
        "model": model,
        "feature_cols": ["features"],
        "label_cols": ["label"],
        "validation": "is_val",
        "epochs": 6,
        "random_seed": 1,
        "partitions_per_process": 2,
        "verbose": 0,
        **changes,
    }
    return TorchEstimator(**options)


def test_a_module_learns_goes_on_is_saved_and_predicts(
    digits: Any, store: Any, tmp_path: Path, here: Any, accuracy_of: Any
) -> None:
    estimator = _estimator(store, Digits(), trainer_args={"gradient_clip_val": 1.0})
    model = estimator.fit(digits)
    history = model.getHistory()
    assert [row["epoch"] for row in history] == list(range(6))
    assert history[-1]["train"]["train_loss"] < history[0]["train"]["train_loss"]
    assert history[-1]["validation"]["val_accuracy"] > 0.8
    assert len(store.get_checkpoints(model.getRunId())) == 1
    assert store.fs.find(store.get_logs_path(model.getRunId()))

    model.save(str(tmp_path / "model"))
    assert accuracy_of(TorchModel.load(str(tmp_path / "model"))) > 0.8

    options = {"run_id": model.getRunId(), "epochs": 1, "num_proc": None, "backend": here}
    again = estimator.copy(
        {estimator.getParam(name): value for name, value in options.items()}
    ).fit(digits)
    assert again.getHistory()[0]["validation"]["val_accuracy"] > 0.8


def test_a_plain_module_has_its_loss_metrics_and_optimizer(
    digits: Any, store: Any, here: Any
) -> None:
    def accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(1) == labels).float().mean()

    network = Digits().net
    model = _estimator(
        store,
        network,
        num_proc=None,
        backend=here,
        optimizer=torch.optim.Adam(network.parameters(), lr=0.01),
        loss=nn.CrossEntropyLoss(),
        metrics=[accuracy],
        sample_weight_col="weight",
        epochs=2,
        backward_passes_per_step=2,
        train_async_data_loader_queue_size=4,
    ).fit(digits)
    assert set(model.getHistory()[1]["train"]) == {"loss", "accuracy"}
    assert set(model.getHistory()[1]["validation"]) == {"val_loss", "val_accuracy"}
    # 480 rows: 15 batches, two per step, the last one alone; two epochs.
    assert {int(state["step"]) for state in model.getOptimizer().state.values()} == {16}


def test_a_data_module_of_lightnings_own(digits: Any, store: Any, here: Any) -> None:
    options = {"num_proc": None, "backend": here, "validation": None, "epochs": 3}
    model = _estimator(store, Digits(), data_module=OwnData, **options).fit(digits)
    losses = [row["train"]["train_loss"] for row in model.getHistory()]
    assert losses[2] < losses[0]
    assert int(model.getModel()(torch.zeros(1, 64)).argmax()) == 3


def test_unusable_params_are_refused_before_the_training(digits: Any, store: Any) -> None:
    module = Digits()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for model, changes, message in (
        (module, {"optimizer": optimizer}, "optimizer must not be given"),
        (module, {"loss": nn.MSELoss()}, "loss must not be given"),
        (module, {"loss_weights": [1.0]}, "loss_weights must not be given"),
        (module, {"loader_num_epochs": 1}, "loader_num_epochs=1"),
        (module.net, {"loss": nn.MSELoss()}, "Optimizer parameter is required"),
        (module.net, {"optimizer": optimizer}, "either loss or loss_constructors"),
    ):
        with pytest.raises(ValueError, match=message):
            _estimator(store, model, **changes).fit(digits)
