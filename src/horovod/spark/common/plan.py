"""What the processes of a training are told: data, params, and where results go."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.core.world import local_rank
from horovod.spark.common.columns import Column, describe, spark_types
from horovod.spark.common.datamodule import DataModule, ParquetDataModule
from horovod.spark.common.declaration import Declared
from horovod.spark.common.pieces import Piece, pieces_of, share_of, steps_of
from horovod.spark.common.store import RemoteStore, Store
from horovod.spark.common.transformation import Transformation
from horovod.spark.task import get_available_devices

__all__ = ["Plan", "gpu_number", "make_plan"]

_PEEK_ROWS = 4
_BY_LOCAL_RANK = "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX"
# What a plan carries as it is; the rest is the frameworks' to send.
_PLAIN = (
    "batch_size",
    "callbacks",
    "categorical_cols",
    "continuous_cols",
    "epochs",
    "gradient_compression",
    "inmemory_cache_all",
    "loss_weights",
    "metrics",
    "mp_start_method",
    "random_seed",
    "reader_pool_type",
    "shuffle",
    "train_reader_num_workers",
    "train_steps_per_epoch",
    "transformation_edit_fields",
    "transformation_fn",
    "transformation_removed_fields",
    "use_gpu",
    "val_reader_num_workers",
    "validation_steps_per_epoch",
    "verbose",
)

# What data modules get of it under the same names.
_HANDED_ON = (
    "categorical_cols",
    "continuous_cols",
    "random_seed",
    "reader_pool_type",
    "train_reader_num_workers",
    "transformation_edit_fields",
    "transformation_removed_fields",
    "val_reader_num_workers",
)


@dataclass(frozen=True)
class Plan:
    """One training; it can be pickled.

    ``params`` are those of the estimator that need no treatment, ``columns`` those that batches
    have, ``val_pieces`` None without validation.
    """

    remote: RemoteStore
    run_id: str
    features: tuple[str, ...]
    labels: tuple[str, ...]
    weight: str | None
    columns: Mapping[str, Column]
    train_pieces: Sequence[Piece]
    val_pieces: Sequence[Piece] | None
    val_batch_size: int
    data_module: type[DataModule]
    params: Mapping[str, Any]

    @property
    def has_val(self) -> bool:
        """Whether there are validation data."""
        return self.val_pieces is not None

    def open_data(self, rank: int, size: int, floats: str | None) -> DataModule:
        """The data of a process, whose floating-point numbers are of the dtype ``floats``."""
        params = self.params
        return self.data_module(
            train_dir=self.remote.train_data_path,
            val_dir=self.remote.val_data_path if self.has_val else None,
            num_train_epochs=params["epochs"],
            has_val=self.has_val,
            train_batch_size=params["batch_size"],
            val_batch_size=self.val_batch_size,
            shuffle=params["shuffle"],
            transform_fn=params["transformation_fn"],
            inmemory_cache_all=params["inmemory_cache_all"],
            cur_shard=rank,
            shard_count=size,
            schema_fields=tuple(self.columns),
            storage_options=self.remote.store.storage_options,
            steps_per_epoch_train=self.train_steps(rank, size),
            steps_per_epoch_val=self.val_steps(rank, size),
            verbose=bool(params["verbose"]),
            train_pieces=self.train_pieces,
            val_pieces=self.val_pieces,
            floats=floats,
            shuffle_rows=params["shuffle_rows"],
            **{name: params[name] for name in _HANDED_ON},
        )

    def train_steps(self, rank: int, size: int) -> int:
        """Batches of an epoch, the same on all ranks."""
        share = share_of(self.train_pieces, rank, size, is_even=True)
        own = steps_of(share, self.params["batch_size"])
        return self.params["train_steps_per_epoch"] or own

    def val_steps(self, rank: int, size: int) -> int:
        """Batches of a validation on this rank; 0 without one."""
        if self.val_pieces is None:
            return 0
        share = share_of(self.val_pieces, rank, size, is_even=False)
        own = steps_of(share, self.val_batch_size)
        return self.params["validation_steps_per_epoch"] or own

    def prepare_process(self) -> None:
        """What holds for the process as a whole."""
        method = self.params["mp_start_method"]
        if method is not None:
            multiprocessing.set_start_method(method, force=True)


def make_plan(estimator: Declared, store: Store, run_id: str, dataset_idx: int | None) -> Plan:
    """Look at the prepared data, and put all together.

    Raises:
        ValueError: there are no rows, or columns are missing or unusable.
    """
    value = estimator.value
    remote = store.to_remote(run_id, dataset_idx)
    features, labels = tuple(value("feature_cols") or ()), tuple(value("label_cols") or ())
    used = [*features, *labels, *filter(None, [value("sample_weight_col")])]
    names = list(dict.fromkeys(used))
    buffer = value("shuffle_buffer_size")
    params = {name: value(name) for name in _PLAIN if name in estimator.parameters}
    params = {**dict.fromkeys(_PLAIN), **params, "shuffle_rows": buffer or None}
    params["shuffle"] = value("shuffle") and buffer != 0
    train_pieces = _pieces(store, remote.train_data_path, "training")
    return Plan(
        remote=remote,
        run_id=run_id,
        features=features,
        labels=labels,
        weight=value("sample_weight_col"),
        columns=_columns(store, remote.train_data_path, names, _transformation(params)),
        train_pieces=train_pieces,
        val_pieces=_pieces(store, remote.val_data_path, "validation")
        if value("validation")
        else None,
        val_batch_size=value("val_batch_size") or value("batch_size"),
        data_module=value("data_module") or ParquetDataModule,
        params=params,
    )


def gpu_number() -> int:
    """The GPU of this process: that which Spark gave to its task, else one by local rank."""
    devices = get_available_devices()
    if devices and os.environ.get(_BY_LOCAL_RANK, "0") == "0":
        return int(devices[0])
    return local_rank()


def _pieces(store: Store, path: str, what: str) -> tuple[Piece, ...]:
    if not store.exists(path):
        raise ValueError(f"there is no {what} dataset at {path}")
    pieces = tuple(pieces_of(store.get_parquet_dataset(path)))
    if not pieces:
        raise ValueError(f"No rows found in {what} dataset: {path}")
    return pieces


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


def _transformation(params: Mapping[str, Any]) -> Transformation | None:
    if params["transformation_fn"] is None:
        return None
    return Transformation(
        params["transformation_fn"],
        tuple(map(tuple, params["transformation_edit_fields"] or ())),
        tuple(params["transformation_removed_fields"] or ()),
    )
