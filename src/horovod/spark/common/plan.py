"""The plan of a training for its processes: data, params, and paths of results."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from horovod.core.world import local_rank
from horovod.spark.common.columns import (
    Column,
    RowGroup,
    Transformation,
    describe,
    row_groups_of,
    shard_of,
    spark_types,
    steps_of,
)
from horovod.spark.common.datamodule import DataModule, ParquetDataModule
from horovod.spark.common.declaration import Declared
from horovod.spark.common.store import RemoteStore, Store
from horovod.spark.task import get_available_devices

_PEEK_ROWS = 4
_BY_LOCAL_RANK = "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX"
# Params that data modules get under the same names.
_DATA_PARAMS = (
    *("categorical_cols", "continuous_cols", "inmemory_cache_all", "random_seed"),
    *("reader_pool_type", "shuffle", "train_reader_num_workers", "val_reader_num_workers"),
    *("transformation_edit_fields", "transformation_removed_fields"),
)
# Params that the training processes do not get, or get in another form.
_NOT_SENT = {"backend", "model", "optimizer", "store"}


class Plan(NamedTuple):
    """One training; it can be pickled.

    ``params`` has the estimator's params, ``columns`` the columns of batches. ``val_row_groups``
    is None without validation.
    """

    remote: RemoteStore
    run_id: str
    features: tuple[str, ...]
    labels: tuple[str, ...]
    weight: str | None
    columns: Mapping[str, Column]
    train_row_groups: Sequence[RowGroup]
    val_row_groups: Sequence[RowGroup] | None
    val_batch_size: int
    data_module: type[DataModule]
    params: Mapping[str, Any]

    @property
    def has_val(self) -> bool:
        """Whether there are validation data."""
        return self.val_row_groups is not None

    def open_data(self, rank: int, size: int, floats: str | None) -> DataModule:
        """The data of a process, with floating-point numbers of the dtype ``floats``."""
        params = self.params
        return self.data_module(
            train_dir=self.remote.train_data_path,
            val_dir=self.remote.val_data_path if self.has_val else None,
            num_train_epochs=params["epochs"],
            has_val=self.has_val,
            train_batch_size=params["batch_size"],
            val_batch_size=self.val_batch_size,
            transform_fn=params["transformation_fn"],
            cur_shard=rank,
            shard_count=size,
            schema_fields=tuple(self.columns),
            storage_options=self.remote.store.storage_options,
            steps_per_epoch_train=self.train_steps(rank, size),
            steps_per_epoch_val=self.val_steps(rank, size),
            verbose=bool(params["verbose"]),
            train_row_groups=self.train_row_groups,
            val_row_groups=self.val_row_groups,
            floats=floats,
            shuffle_rows=params["shuffle_rows"],
            **{name: params[name] for name in _DATA_PARAMS},
        )

    def train_steps(self, rank: int, size: int) -> int:
        """Batches of an epoch, the same on all ranks."""
        shard = shard_of(self.train_row_groups, rank, size, is_even=True)
        own = steps_of(shard, self.params["batch_size"])
        return self.params["train_steps_per_epoch"] or own

    def val_steps(self, rank: int, size: int) -> int:
        """Batches of a validation on this rank; 0 without one."""
        if self.val_row_groups is None:
            return 0
        shard = shard_of(self.val_row_groups, rank, size, is_even=False)
        own = steps_of(shard, self.val_batch_size)
        return self.params["validation_steps_per_epoch"] or own

    def prepare_process(self) -> None:
        """Apply the settings of the whole process."""
        method = self.params["mp_start_method"]
        if method is not None:
            multiprocessing.set_start_method(method, force=True)


def make_plan(estimator: Declared, store: Store, run_id: str, dataset_idx: int | None) -> Plan:
    """The plan for an estimator and its prepared data.

    Raises:
        ValueError: there are no rows, or columns are missing or unusable.
    """
    value = estimator.value
    remote = store.to_remote(run_id, dataset_idx)
    features, labels = tuple(value("feature_cols") or ()), tuple(value("label_cols") or ())
    used = [*features, *labels, *filter(None, [value("sample_weight_col")])]
    names = list(dict.fromkeys(used))
    buffer = value("shuffle_buffer_size")
    params = {name: value(name) for name in estimator.parameters if name not in _NOT_SENT}
    params["shuffle_rows"] = buffer or None
    params["shuffle"] = value("shuffle") and buffer != 0
    train_row_groups = _row_groups(store, remote.train_data_path, "training")
    transformation = Transformation.of(params["transformation_fn"], params)
    return Plan(
        remote=remote,
        run_id=run_id,
        features=features,
        labels=labels,
        weight=value("sample_weight_col"),
        columns=_columns(store, remote.train_data_path, names, transformation),
        train_row_groups=train_row_groups,
        val_row_groups=_row_groups(store, remote.val_data_path, "validation")
        if value("validation")
        else None,
        val_batch_size=value("val_batch_size") or value("batch_size"),
        data_module=value("data_module") or ParquetDataModule,
        params=params,
    )


def gpu_number() -> int:
    """The GPU of this process: the one that Spark gave to its task, else the local rank."""
    devices = get_available_devices()
    if devices and os.environ.get(_BY_LOCAL_RANK, "0") == "0":
        return int(devices[0])
    return local_rank()


def _row_groups(store: Store, path: str, what: str) -> tuple[RowGroup, ...]:
    if not store.exists(path):
        raise ValueError(f"there is no {what} dataset at {path}")
    groups = tuple(row_groups_of(store.get_parquet_dataset(path)))
    if not groups:
        raise ValueError(f"No rows found in {what} dataset: {path}")
    return groups


def _columns(
    store: Store, path: str, names: Sequence[str], transformation: Transformation | None
) -> dict[str, Column]:
    dataset = store.get_parquet_dataset(path)
    types = spark_types(dataset.schema)
    if transformation is not None:
        first = dataset.head(_PEEK_ROWS)
        return transformation.describe(first, names, types)
    missing = [name for name in names if name not in dataset.schema.names]
    if missing:
        raise ValueError(f"{path} has no columns {missing}; it has {dataset.schema.names}")
    first = dataset.head(_PEEK_ROWS, columns=list(names))
    return describe(first, {name: types[name] for name in names})
