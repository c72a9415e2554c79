"""Sources of batches; subclass ``DataModule`` for another source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import fsspec
import pyarrow.dataset as ds
import pyarrow.fs

from horovod.core.base.replaced import names_of
from horovod.spark.common.columns import Transformation, row_groups_of, shard_of, steps_of
from horovod.spark.common.reader import Batches, Blocks, Reading

__all__ = ["DataModule", "ParquetDataModule", "PetastormDataModule"]

__getattr__ = names_of(__name__)


class DataModule(ABC):
    """The data of one process: batches ``{column: array}`` of arrays or tensors.

    Args:
        train_dir, val_dir: URLs of the Parquet files.
        num_train_epochs: the number of training epochs.
        has_val: whether there are validation data.
        train_batch_size, val_batch_size: rows of a batch.
        shuffle: read training data in another order in each epoch.
        transform_fn: takes and returns a pandas DataFrame, before columns are selected.
        inmemory_cache_all: keep the rows in memory after the first epoch.
        cur_shard, shard_count: the shard of the rows that this process reads, and the number of
            shards.
        schema_fields: the columns.
        storage_options: fsspec's options for the file system.
        steps_per_epoch_train, steps_per_epoch_val: batches of an epoch; all of them are consumed.
        verbose: whether to print messages.
        kwargs: other params of the estimator.
    """

    short_name: str

    def __init__(
        self,
        train_dir: str,
        val_dir: str | None,
        num_train_epochs: int = 1,
        has_val: bool = True,
        train_batch_size: int = 32,
        val_batch_size: int = 32,
        shuffle: bool = True,
        transform_fn: Callable[[Any], Any] | None = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        steps_per_epoch_train: int = 1,
        steps_per_epoch_val: int = 1,
        verbose: bool = True,
        **kwargs: Any,
    ) -> None:
        self.train_dir = train_dir
        self.val_dir = val_dir
        self.num_train_epochs = num_train_epochs
        self.has_val = has_val
        self.train_batch_size = train_batch_size
        self.val_batch_size = val_batch_size
        self.shuffle = shuffle
        self.transform_fn = transform_fn
        self.inmemory_cache_all = inmemory_cache_all
        self.cur_shard = cur_shard
        self.shard_count = shard_count
        self.schema_fields = schema_fields
        self.storage_options = storage_options
        self.steps_per_epoch_train = steps_per_epoch_train
        self.steps_per_epoch_val = steps_per_epoch_val
        self.verbose = verbose
        self.kwargs = kwargs

    def __enter__(self) -> DataModule:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @abstractmethod
    def train_data(self) -> Iterable[Mapping[str, Any]]:
        """Training data; each iteration is an epoch."""

    @abstractmethod
    def val_data(self) -> Iterable[Mapping[str, Any]]:
        """Validation data; each iteration is an epoch."""


class ParquetDataModule(DataModule):
    """Reads Parquet files with pyarrow, in bounded memory; the default of estimators.

    Besides the arguments of a ``DataModule`` it takes ``train_row_groups`` and ``val_row_groups``
    (by default those of all files), ``floats``, the dtype of floating-point numbers, and these
    params of estimators: ``random_seed``, ``shuffle_rows``, ``reader_pool_type``,
    ``train_reader_num_workers``, ``val_reader_num_workers``, ``transformation_edit_fields`` and
    ``transformation_removed_fields``.
    """

    short_name = "parquet"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._opened: list[Batches] = []

    def train_data(self) -> Batches:
        """This process's shard; all shards have the same size."""
        return self._batches("train", self.shuffle)

    def val_data(self) -> Batches:
        """This process's shard, in the order of the files; each row is in one shard."""
        if not self.has_val or self.val_dir is None:
            raise ValueError("there are no validation data")
        return self._batches("val", False)

    def __exit__(self, *_: object) -> None:
        for batches in self._opened:
            batches.close()

    def _batches(self, what: str, is_shuffled: bool) -> Batches:
        """The batches for ``train`` or ``val``, which names the arguments."""
        options = self.kwargs
        url, batch_size = getattr(self, f"{what}_dir"), getattr(self, f"{what}_batch_size")
        filesystem, path = _opened(url, self.storage_options or {})
        groups = options.get(f"{what}_row_groups")
        if groups is None:
            groups = row_groups_of(ds.dataset(path, filesystem=filesystem, format="parquet"))
        shard = shard_of(groups, self.cur_shard, self.shard_count, is_even=what == "train")
        seed = options.get("random_seed")
        reading = Reading(
            names=tuple(self.schema_fields or ()),
            floats=options.get("floats", "float32"),
            transformation=Transformation.of(self.transform_fn, options),
            is_shuffled=is_shuffled,
            pool_rows=options.get("shuffle_rows"),
            seed=None if seed is None else seed + self.cur_shard,
            worker_count=options.get(f"{what}_reader_num_workers", 2),
            is_ahead=options.get("reader_pool_type") != "dummy",
            is_kept=self.inmemory_cache_all,
        )
        steps = getattr(self, f"steps_per_epoch_{what}") or steps_of(shard, batch_size)
        batches = Batches(Blocks(shard, filesystem, reading), batch_size, steps)
        self._opened.append(batches)
        return batches


# The name in existing programs; it does not use Petastorm.
PetastormDataModule = ParquetDataModule


def _opened(url: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    filesystem, path = fsspec.core.url_to_fs(url, **storage_options)
    if "file" in filesystem.protocol:
        return pyarrow.fs.LocalFileSystem(), path
    return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem)), path
