"""Import paths of the estimators, and the errors for missing ones."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from horovod.spark.common import util
from horovod.spark.common.backend import default_num_proc
from horovod.spark.common.estimator import HorovodEstimator
from horovod.spark.common.store import (
    AbstractFilesystemStore,
    DBFSLocalStore,
    HDFSStore,
    Store,
)

FRAMEWORKS = ("keras", "torch", "lightning")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_data_modules_have_a_path_of_each_framework(framework: str) -> None:
    module = import_module(f"horovod.spark.{framework}.datamodule")
    assert module.PetastormDataModule.short_name == "parquet"
    with pytest.raises(ImportError, match="reads with GPUs; use PetastormDataModule"):
        module.NVTabularDataModule  # noqa: B018
    with pytest.raises(ImportError, match="any iterable"):
        module.MapIterable  # noqa: B018
    assert not hasattr(module, "walk")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("common.cache", "prepare_data itself remembers"),
        ("common.constants", r"horovod\.spark\.common\.params"),
        ("common.serialization", r"write\(\)\.save"),
        ("driver", "horovod.spark.run"),
        ("gloo_run", "horovod.spark.run"),
        ("mpi_run", "horovod.spark.run"),
    ],
)
def test_a_missing_name_is_an_error_with_its_replacement(name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=instead):
        import_module(f"horovod.spark.{name}")


def test_loaders_and_run_have_other_paths() -> None:
    import horovod.spark
    import horovod.spark.data_loaders as loaders
    from horovod.spark.data_loaders.pytorch_data_loaders import PytorchDataLoader
    from horovod.spark.runner import run, run_elastic

    assert loaders.PytorchDataLoader is PytorchDataLoader
    assert (run, run_elastic) == (horovod.spark.run, horovod.spark.run_elastic)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_params_are_set_by_their_names(framework: str) -> None:
    estimators = import_module(f"horovod.spark.{framework}")
    kind = next(getattr(estimators, name) for name in estimators.__all__ if "Estimator" in name)
    estimator: HorovodEstimator = kind().setParams(epochs=3, batch_size=4)
    assert estimator.value("epochs") == 3
    with pytest.raises(TypeError, match="has no parameters walk"):
        estimator.setParams(walk=1)
    with pytest.raises(ValueError, match="epochs=0"):
        estimator.setParams(epochs=0)


def test_lightning_has_no_function_for_a_step() -> None:
    import torch

    from horovod.spark.lightning import TorchEstimator

    estimator = TorchEstimator(model=torch.nn.Linear(1, 1), train_minibatch_fn=print)
    with pytest.raises(ValueError, match="training_step of a LightningModule"):
        estimator._check()
    assert estimator.setNumGPUs(1).getNumGPUs() == 1


def test_frames_have_two_names() -> None:
    from horovod.spark.torch import TorchEstimator, TorchModel

    frame: Any = object()
    with pytest.raises(ValueError, match="Model parameter is required"):
        TorchEstimator().fit(df=frame)
    with pytest.raises(ValueError, match="model is missing"):
        TorchModel().transform(df=frame)
    with pytest.raises(TypeError, match="expected a DataFrame"):
        TorchEstimator().fit()
    with pytest.raises(TypeError, match="expected a DataFrame"):
        TorchEstimator().fit(frame, df=frame)


def test_stores(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path / "store"))
    assert isinstance(store, AbstractFilesystemStore)
    assert store.get_filesystem() is store.fs
    (tmp_path / "model.keras").write_bytes(b"model")
    store.write_text(f"{store.prefix_path}/there", "")
    store.copy(str(tmp_path / "model.keras"), f"{store.prefix_path}/copy.keras")
    path = f"{store.prefix_path}/copy.keras"
    assert store.read_serialized_keras_model(path, None, {}) == b"model"
    metadata = store.get_data_metadata_path(store.get_train_data_path())
    assert metadata == f"{tmp_path}/store/intermediate_train_data/_common_metadata"
    assert Store().prefix_path == f"file://{os.getcwd()}"


def test_paths_of_stores() -> None:
    for path in ("dbfs:/a/b", "/dbfs/a/b", "file:///dbfs/a/b"):
        assert DBFSLocalStore.normalize_path(path) == "/dbfs/a/b"
    with pytest.raises(ValueError, match="is none of"):
        DBFSLocalStore.normalize_path("/a/b")
    assert HDFSStore.parse_url("hdfs://name:80/a") == ("hdfs://", "name", 80, "/a")
    assert HDFSStore.parse_url("/a") == (None, None, None, "/a")


def test_helpers(monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    assert default_num_proc() == spark.sparkContext.defaultParallelism
    assert util.host_hash() == util.host_hash() != util.host_hash("salt")
    assert not util.is_databricks()
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "15")
    assert util.is_databricks()
    assert util.to_list(None, 2) is None
    assert util.to_list(1, 2) == util.to_list([1], 2) == [1, 1]
    assert util.to_list([1, 2], 2) == [1, 2]
    with pytest.raises(ValueError, match="expected 3 elements"):
        util.to_list([1, 2], 3)
