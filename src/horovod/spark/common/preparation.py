"""Writes a DataFrame as Parquet files into a store: rows for training and for validation."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.ml.functions import vector_to_array
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, NumericType

from horovod.spark.common.columns import VECTOR, row_groups_of, rows_of
from horovod.spark.common.store import Store

_FILES_TIMEOUT_S = 60.0
_PAUSE_S = 0.1
# The seed of a random split, which has to be the same each time that Spark computes it.
_SEED = 1


class _DatasetKey(NamedTuple):
    """The identity of a prepared dataset, besides its DataFrame."""

    prefix_path: str
    columns: tuple[str, ...]
    validation: float | str | None
    is_compressed: bool
    partition_count: int


@dataclass
class _Entry:
    """A prepared dataset; ``frame`` is a weak reference to its DataFrame."""

    key: _DatasetKey
    frame: weakref.ref[DataFrame]
    users: int = 1
    is_being_written: bool = True
    is_there: bool = False


class _Datasets:
    """The prepared datasets of this process, and the number of their users."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._entries: dict[tuple[str, int], _Entry] = {}

    def acquire(
        self, key: _DatasetKey, frame: DataFrame, may_replace: Callable[[int], bool]
    ) -> tuple[int, bool]:
        """The number of a dataset, and whether it exists; if not, the caller has to write it.

        Waits while another thread writes it. Skips numbers whose data ``may_replace`` refuses.
        """
        with self._lock:
            for (_, number), entry in self._entries.items():
                if entry.key == key and entry.frame() is frame:
                    entry.users += 1
                    while entry.is_being_written:
                        self._lock.wait()
                    entry.is_being_written = not entry.is_there
                    return number, entry.is_there
            number = 0
            while self._is_used(key.prefix_path, number) or not may_replace(number):
                number += 1
            self._entries[key.prefix_path, number] = _Entry(key, weakref.ref(frame))
            return number, False

    def written(self, key: _DatasetKey, number: int, is_there: bool) -> None:
        """Note that the writer of a dataset has ended."""
        with self._lock:
            entry = self._entries[key.prefix_path, number]
            entry.is_there, entry.is_being_written = is_there, False
            self._lock.notify_all()

    def release(self, key: _DatasetKey, number: int) -> None:
        """Note that a user of a dataset has ended."""
        with self._lock:
            self._entries[key.prefix_path, number].users -= 1

    def _is_used(self, prefix: str, number: int) -> bool:
        entry = self._entries.get((prefix, number))
        return entry is not None and entry.users > 0


_datasets = _Datasets()


@contextlib.contextmanager
def prepare_data(
    num_processes: int,
    store: Store,
    df: DataFrame,
    label_columns: Sequence[str] | None,
    feature_columns: Sequence[str] | None,
    validation: float | str | None = None,
    sample_weight_col: str | None = None,
    compress_sparse: bool = False,
    partitions_per_process: int = 10,
    verbose: int = 0,
) -> Iterator[int]:
    """Write a DataFrame into a store, unless this process has done so; yields its number there.

    ``store.get_train_data_path(number)`` has the rows. Within ``with`` no other DataFrame gets the
    number; afterwards the data stay until another DataFrame needs the number.

    Args:
        num_processes: the number of processes that will read.
        store: the store.
        df: the rows; with a random split it is computed once.
        label_columns, feature_columns: the columns to write; None: all other columns are features.
        validation: share of the rows for validation, or a column (boolean, or a number, which
            selects a row if greater than 0).
        sample_weight_col: a column that is written, too.
        compress_sparse: write vectors as vectors; else as arrays.
        partitions_per_process: Parquet files per process.
        verbose: print the numbers of rows if greater than 0.

    Raises:
        ValueError: a number is not positive, labels are missing, columns are unknown or of an
            unusable type.
        RuntimeError: files did not appear in time.
    """
    names = _columns_of(df, label_columns, feature_columns, validation, sample_weight_col)
    if num_processes <= 0 or partitions_per_process <= 0:
        raise ValueError(
            f"num_processes={num_processes}, partitions_per_process={partitions_per_process}: "
            "both have to be greater than 0"
        )
    partition_count = num_processes * partitions_per_process
    key = _DatasetKey(store.prefix_path, names, validation, compress_sparse, partition_count)
    number, is_there = _datasets.acquire(key, df, partial(_may_replace, store))
    try:
        if not (is_there and store.is_parquet_dataset(store.get_train_data_path(number))):
            is_there = False
            try:
                _write(store, df, key, number, verbose)
                is_there = True
            finally:
                _datasets.written(key, number, is_there)
        yield number
    finally:
        _datasets.release(key, number)


def _may_replace(store: Store, number: int) -> bool:
    """Whether the data of that number in the store are missing or this user's."""
    paths = (store.get_train_data_path(number), store.get_val_data_path(number))
    return all(map(store.may_replace_data, paths))


def _columns_of(
    df: DataFrame,
    labels: Sequence[str] | None,
    features: Sequence[str] | None,
    validation: float | str | None,
    weight: str | None,
) -> tuple[str, ...]:
    if not labels:
        raise ValueError("label columns are missing")
    others = [weight] if weight else []
    if features is None:
        known = {*labels, *others, validation}
        features = [name for name in df.columns if name not in known]
    names = tuple(dict.fromkeys([*features, *labels, *others]))
    wanted = [*names, validation] if isinstance(validation, str) else names
    unknown = [name for name in wanted if name not in df.columns]
    if unknown:
        raise ValueError(f"the DataFrame has no columns {unknown}; it has {df.columns}")
    if isinstance(validation, str):
        kind = df.schema[validation].dataType
        if not isinstance(kind, BooleanType | NumericType):
            raise ValueError(f"validation column {validation!r} is of type {kind.simpleString()}")
    return names


def _write(store: Store, df: DataFrame, key: _DatasetKey, number: int, verbose: int) -> None:
    train_path, val_path = store.get_train_data_path(number), store.get_val_data_path(number)
    columns = [_stored(df, name, key.is_compressed) for name in key.columns]
    if not key.validation:
        counts = [_write_rows(store, df.select(*columns), train_path, key.partition_count), 0]
    else:
        flag = _flag(df, key.validation)
        marked = df.select(*columns, flag.alias("__validation"))
        # Both parts must come from the same rows, even if the DataFrame is random.
        marked = marked.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = [
                _write_rows(store, part.drop("__validation"), path, key.partition_count)
                for part, path in (
                    (marked.where(~F.col("__validation")), train_path),
                    (marked.where("__validation"), val_path),
                )
            ]
        finally:
            marked.unpersist()
    if verbose:
        print(f"horovod: {counts[0]} rows for training, {counts[1]} for validation", flush=True)


def _stored(df: DataFrame, name: str, is_compressed: bool) -> Any:
    if df.schema[name].dataType.simpleString() == VECTOR and not is_compressed:
        # The metadata tell the reader that this was a vector.
        return vector_to_array(f"`{name}`").alias(name, metadata={"horovod": VECTOR})
    return F.col(f"`{name}`")


def _flag(df: DataFrame, validation: float | str) -> Any:
    if isinstance(validation, str):
        is_boolean = isinstance(df.schema[validation].dataType, BooleanType)
        column = F.col(f"`{validation}`")
        flag = column if is_boolean else column > 0
        return F.coalesce(flag, F.lit(False))
    return F.rand(_SEED) < validation


def _write_rows(store: Store, rows: DataFrame, path: str, partition_count: int) -> int:
    observation = Observation()
    counted = rows.repartition(partition_count).observe(
        observation, F.count(F.lit(1)).alias("rows")
    )
    store.claim_data(path)
    counted.write.mode("overwrite").parquet(path)
    count = int(observation.get["rows"])
    _wait_for_rows(store, path, count)
    return count


def _wait_for_rows(store: Store, path: str, count: int) -> None:
    """Wait for the files: some file systems show them later."""
    deadline = time.monotonic() + _FILES_TIMEOUT_S
    found = -1
    while found != count:
        if found >= 0:
            time.sleep(_PAUSE_S)
        found = rows_of(row_groups_of(store.get_parquet_dataset(path))) if store.exists(path) else 0
        if time.monotonic() > deadline:
            raise RuntimeError(
                "Timeout while waiting for all parquet-store files to appear: Spark has written "
                f"{count} rows to {path}, and {found} can be read"
            )
