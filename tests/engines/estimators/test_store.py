"""Stores: paths, files, and the part for training processes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from horovod.spark.common.store import (
    DBFSLocalStore,
    FilesystemStore,
    HDFSStore,
    LocalStore,
    Store,
)


def test_a_path_of_this_machine_has_the_documented_layout(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    assert isinstance(store, FilesystemStore)
    assert store.get_train_data_path() == f"file://{tmp_path}/intermediate_train_data"
    assert store.get_val_data_path(3) == f"file://{tmp_path}/intermediate_val_data.3"
    assert store.get_test_data_path().endswith("/intermediate_test_data")
    assert store.get_runs_path() == f"file://{tmp_path}/runs"
    assert store.get_checkpoint_path("r") == f"file://{tmp_path}/runs/r/checkpoint"
    assert store.get_logs_path("r") == f"file://{tmp_path}/runs/r/logs"


def test_places_can_be_given_one_by_one(tmp_path: Path) -> None:
    store = Store.create(
        str(tmp_path), train_path="/data/t", runs_path="/data/r", checkpoint_filename="best"
    )
    assert store.get_train_data_path() == "file:///data/t"
    assert store.get_checkpoint_path("x") == "file:///data/r/x/best"


def test_without_saved_runs_there_is_no_place_for_them(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path), save_runs=False)
    assert not store.saving_runs()
    assert store.get_checkpoint_path("r") is None
    assert store.get_logs_path("r") is None
    assert store.get_checkpoints("r") == []


@pytest.mark.parametrize("prefix", ["{tmp}", "memory://estimators"])
def test_files_are_written_read_and_listed(tmp_path: Path, prefix: str) -> None:
    store = Store.create(prefix.format(tmp=tmp_path))
    path = f"{store.get_checkpoint_path('r')}/a.ckpt"
    assert not store.exists(path)
    store.write_text(path, "état")
    assert store.read(path) == "état".encode()
    assert [os.path.basename(name) for name in store.get_checkpoints("r")] == ["a.ckpt"]


@pytest.mark.parametrize("prefix", ["{tmp}", "memory://tables"])
def test_parquet_is_found_where_it_is(tmp_path: Path, prefix: str) -> None:
    store = Store.create(prefix.format(tmp=tmp_path))
    path = store.get_train_data_path(0)
    assert not store.is_parquet_dataset(path)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1, 2, 3]}), sink)
    store.write(f"{path}/part-0.parquet", sink.getvalue().to_pybytes())
    assert store.is_parquet_dataset(path)
    assert store.get_parquet_dataset(path).to_table()["a"].to_pylist() == [1, 2, 3]


def test_a_remote_store_can_be_pickled_and_syncs_folders(tmp_path: Path) -> None:
    remote = pickle.loads(pickle.dumps(Store.create(str(tmp_path)).to_remote("r", 2)))
    assert remote.train_data_path == f"file://{tmp_path}/intermediate_train_data.2"
    with remote.get_local_output_dir() as folder:
        Path(folder, "logs").mkdir()
        Path(folder, "logs", "events").write_text("x")
        remote.sync(folder)
    assert not os.path.exists(folder)
    assert (tmp_path / "runs" / "r" / "logs" / "events").read_text() == "x"


def test_hdfs_takes_the_namenode_from_the_path_or_the_arguments() -> None:
    store: Any = Store.create("hdfs://name:9000/data")
    assert isinstance(store, HDFSStore)
    assert store.get_train_data_path() == "hdfs://name:9000/data/intermediate_train_data"
    options = store.storage_options
    assert (options["host"], options["port"]) == ("name", 9000)
    assert HDFSStore("/data", host="name", port=1).prefix_path == "hdfs://name:1/data"
    assert HDFSStore("hdfs:///data").prefix_path == "hdfs:///data"
    with pytest.raises(ValueError, match="namespace"):
        store.get_full_path("hdfs://other:9000/data")
    with pytest.raises(ValueError, match="host='b'"):
        HDFSStore("hdfs://a/data", host="b")


def test_databricks_paths_are_files_of_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/dbfs/run", "dbfs:/run", "file:///dbfs/run"):
        store = DBFSLocalStore(path)
        assert store.prefix_path == "file:///dbfs/run"
        assert store.get_checkpoint_filename() == "checkpoint.tf"
    with pytest.raises(ValueError, match="none of"):
        DBFSLocalStore("/tmp/run")
    assert type(Store.create("/dbfs/run")) is FilesystemStore
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.0")
    assert type(Store.create("/dbfs/run")) is DBFSLocalStore


def test_the_older_name_warns(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="FilesystemStore"):
        LocalStore(str(tmp_path))


def test_data_that_no_estimator_has_written_is_left_alone(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    path = store.get_train_data_path(0)
    local = tmp_path / "intermediate_train_data.0"
    assert store.may_replace_data(path)
    local.mkdir()  # of the user
    assert not store.may_replace_data(path)
    local.rmdir()
    store.claim_data(path)
    assert store.may_replace_data(path)
    local.mkdir()
    assert store.may_replace_data(path)
    store.write_text(f"{path}.horovod", "prepared by an estimator of Horovod for user 4242\n")
    assert not store.may_replace_data(path)
    store.claim_data(path)
    local.rmdir()
    local.symlink_to(tmp_path)
    assert not store.may_replace_data(path)
    memory = Store.create("memory://owned")
    other = memory.get_train_data_path()
    memory.write_text(f"{other}/part-0.parquet", "words")
    assert not memory.may_replace_data(other)
    memory.claim_data(other)
    assert memory.may_replace_data(other)


def test_only_a_regular_file_is_replaced(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / "checkpoint.part").write_text("words")
    (tmp_path / "runs" / "r" / "link").symlink_to("checkpoint.part")
    store.write_text(f"{store.get_run_path('r')}/checkpoint", "new")
    with pytest.raises(OSError, match="link: expected a regular file"):
        store.write_text(f"{store.get_run_path('r')}/link", "new")
    assert (tmp_path / "runs" / "r" / "checkpoint.part").read_text() == "words"
    assert (tmp_path / "runs" / "r" / "checkpoint").read_text() == "new"
