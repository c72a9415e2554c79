"""``TorchEstimator`` on Spark, from a DataFrame to predictions."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.datamodule import ParquetDataModule
from horovod.spark.torch import TorchEstimator, TorchModel


def accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == labels).float().mean()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def estimator(store: Any, model: Any, **changes: Any) -> TorchEstimator:
    options = {
        "num_proc": 2,
        "store": store,
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.01),
        "loss": nn.CrossEntropyLoss(),
        "metrics": [accuracy],
        "feature_cols": ["features"],
        "label_cols": ["label"],
        "validation": "is_val",
        "sample_weight_col": "weight",
        "batch_size": 32,
        "epochs": 6,
        "random_seed": 1,
        "partitions_per_process": 2,
        "verbose": 0,
        **changes,
    }
    return TorchEstimator(**options)


def test_a_pipeline_learns_goes_on_is_saved_and_predicts(
    digits: Any, store: Any, tmp_path: Path, here: Any, accuracy_of: Any
) -> None:
    from pyspark.ml import Pipeline, PipelineModel

    pipeline = Pipeline(stages=[estimator(store, network())])
    pipeline.write().overwrite().save(str(tmp_path / "pipeline"))
    stage = Pipeline.load(str(tmp_path / "pipeline")).getStages()[0]
    assert stage.getBatchSize() == 32
    assert stage.getStore() is None
    fitted = Pipeline(stages=[stage.setStore(store)]).fit(digits)
    model = fitted.stages[0]
    history = model.getHistory()
    assert [row["epoch"] for row in history] == list(range(6))
    assert history[-1]["train"]["loss"] < history[0]["train"]["loss"]
    assert set(history[0]["validation"]) == {"loss", "accuracy"}
    assert history[-1]["validation"]["accuracy"] > 0.8

    saved = torch.load(
        io.BytesIO(store.read(store.get_checkpoint_path(model.getRunId()))), weights_only=True
    )
    assert set(saved) == {"model", "optimizer"}
    torch.testing.assert_close(saved["model"], dict(model.getModel().state_dict()))

    fitted.write().overwrite().save(str(tmp_path / "model"))
    loaded = PipelineModel.load(str(tmp_path / "model"))
    assert isinstance(loaded.stages[0], TorchModel)
    assert accuracy_of(loaded) > 0.8
    named = loaded.stages[0].setOutputCols(["scores"]).transform(digits.limit(3))
    assert named.schema["scores"].dataType.simpleString() == "vector"
    with pytest.raises(ValueError, match="already"):
        loaded.stages[0].setOutputCols(["label"]).transform(digits)

    # The run continues with the weights and the optimizer's state of its checkpoint.
    options = {"run_id": model.getRunId(), "epochs": 1, "num_proc": None, "backend": here}
    again = stage.copy({stage.getParam(name): value for name, value in options.items()}).fit(digits)
    first, last = history[0]["train"]["loss"], history[-1]["train"]["loss"]
    assert again.getHistory()[0]["train"]["loss"] < (first + last) / 2
    steps = {int(state["step"]) for state in again.getOptimizer().state.values()}
    # 240 rows in each of two processes, then all rows in one.
    assert steps == {6 * 8 + 15}


class TwoHeads(nn.Module):
    """A model from an image and its mean to a class and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(1, 4, 3)
        self.scores = nn.Linear(4 * 36 + 1, 10)
        self.mean = nn.Linear(4 * 36 + 1, 1)

    def forward(self, image: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert image.shape[1:] == (1, 8, 8)
        both = torch.cat([self.image(image).flatten(1).relu(), mean], dim=1)
        return self.scores(both), self.mean(both)


class Counting(ParquetDataModule):
    """Records which processes read."""

    short_name = "counting"

    def train_data(self) -> Any:
        Path(self.kwargs["categorical_cols"][0], f"rank-{self.cur_shard}").touch()
        return super().train_data()


def halved(model: Any, optimizer: Any, transform: Any, loss: Any, *batch: Any) -> Any:
    inputs, labels, weights = batch
    optimizer.zero_grad()
    outputs, labels = transform(model(*inputs), labels)
    found = loss(outputs, labels, weights)
    (found / 2).backward()
    optimizer.step()
    return outputs, found


def test_several_columns_own_steps_and_own_reading(
    digits: Any, store: Any, tmp_path: Path, here: Any
) -> None:
    rows: list[Any] = []
    model = TwoHeads()
    trained = estimator(
        store,
        model,
        num_proc=None,
        backend=here,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        loss=None,
        loss_constructors=[nn.CrossEntropyLoss, nn.MSELoss],
        loss_weights=[1.0, 0.5],
        metrics=[],
        feature_cols=["pixels", "mean"],
        label_cols=["label", "mean"],
        input_shapes=[[-1, 1, 8, 8], [-1, 1]],
        validation=None,
        epochs=1,
        train_steps_per_epoch=5,
        train_minibatch_fn=halved,
        data_module=Counting,
        categorical_cols=[str(tmp_path)],
        callbacks=[rows.append],
        run_id="heads",
    ).fit(digits)
    assert (tmp_path / "rank-0").exists()
    assert rows == trained.getHistory()
    assert list(rows[0]["train"]) == ["loss"]
    predicted = trained.transform(digits.limit(5))
    types = {field.name: field.dataType.simpleString() for field in predicted.schema.fields}
    assert (types["label__output"], types["mean__output"]) == ("vector", "double")
    row = predicted.first()
    image = torch.tensor(row["pixels"]).reshape(1, 1, 8, 8)
    scores, mean = trained.getModel()(image, torch.tensor([[row["mean"]]]))
    np.testing.assert_allclose(row["label__output"].toArray(), scores[0].tolist(), rtol=1e-5)
    np.testing.assert_allclose(row["mean__output"], mean.item(), rtol=1e-5)


def test_unusable_params_are_refused_before_the_training(digits: Any, store: Any) -> None:
    model = network()
    for changes, message in (
        ({"loss": None}, "either loss or loss_constructors"),
        ({"loss_constructors": [nn.MSELoss]}, "either loss or loss_constructors"),
        ({"loss_weights": [1.0, 2.0]}, "2 loss_weights for 1"),
        ({"feature_cols": ["nothing"]}, "nothing"),
        ({"label_shapes": [[-1], [-1]]}, "2 label_shapes"),
    ):
        with pytest.raises(ValueError, match=message):
            estimator(store, model, **changes).fit(digits)
    with pytest.raises(ValueError, match="Model parameter is required"):
        estimator(store, model).setModel(None).fit(digits)
    with pytest.raises(ValueError, match="Store parameter is required"):
        estimator(None, model).fit(digits)
    for changes, message in (
        ({"backend": SparkBackend(2)}, "num_proc or backend"),
        ({"validation": 1.5}, "less than 1"),
        ({"backward_passes_per_step": 0}, "at least 1"),
        ({"mp_start_method": "thread"}, "none of"),
    ):
        with pytest.raises(ValueError, match=message):
            estimator(store, model, **changes)
    with pytest.raises(ValueError, match="No rows found in training dataset"):
        estimator(store, model, validation=None).fit(digits.where("label > 10"))
