"""The base class of stores, and the part of a store that training processes get."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import fsspec
import pyarrow.dataset as ds
import pyarrow.fs

from horovod.core.base.own_files import replacing

LOCAL = "file"


@dataclass(frozen=True)
class RemoteStore:
    """A store and the paths of a run, for the training processes; it can be pickled."""

    store: Store
    train_data_path: str
    val_data_path: str
    test_data_path: str
    saving_runs: bool
    runs_path: str
    run_path: str
    checkpoint_path: str | None
    logs_path: str | None
    checkpoint_filename: str
    logs_subdir: str
    get_local_output_dir: Callable[[], AbstractContextManager[str]]
    sync: Callable[[str], None]


class Store:
    """A folder for prepared data and a folder for runs, on one file system.

        PREFIX/intermediate_train_data[.N]      Parquet, as are ..._val_data and ..._test_data
        PREFIX/runs/RUN_ID/checkpoint
        PREFIX/runs/RUN_ID/logs

    Paths are URLs of fsspec, or paths of this machine.

    Args:
        prefix_path: the folder of all; by default the current folder.
        train_path, val_path, test_path, runs_path: other folders for these.
        save_runs: write checkpoints and logs.
        storage_options: fsspec's options for the file system, such as keys. Spark has its own
            settings for the same.
        checkpoint_filename: instead of ``checkpoint``.
    """

    def __init__(
        self,
        prefix_path: str = "",
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        self.prefix_path = self.get_full_path(str(prefix_path))
        self.storage_options = dict(storage_options or {})
        self._train_path = self._path_or(train_path, "intermediate_train_data")
        self._val_path = self._path_or(val_path, "intermediate_val_data")
        self._test_path = self._path_or(test_path, "intermediate_test_data")
        self._runs_path = self._path_or(runs_path, "runs")
        self._save_runs = save_runs
        self._checkpoint_filename = checkpoint_filename or self._default_checkpoint_filename

    _default_checkpoint_filename = "checkpoint"

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """The store for a path: of HDFS, Databricks or fsspec."""
        # Not at the top, because that module imports this one.
        from horovod.spark.common.store import DBFSLocalStore, FilesystemStore, HDFSStore

        for kind in (HDFSStore, DBFSLocalStore):
            if kind.matches(prefix_path):
                return kind(prefix_path, *args, **kwargs)
        return FilesystemStore(prefix_path, *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether ``create`` makes a store of this class for the path."""
        raise NotImplementedError

    @property
    def fs(self) -> Any:
        """The file system of fsspec."""
        return fsspec.filesystem(_protocol(self.prefix_path), **self.storage_options)

    def get_filesystem(self) -> Any:
        """The same as ``fs``."""
        return self.fs

    def get_full_path(self, path: str) -> str:
        """The URL of a path."""
        if "://" in path:
            return path
        return f"{LOCAL}://{os.path.abspath(path)}"

    def get_full_path_fn(self) -> Callable[[str], str]:
        """``get_full_path`` as a function that can be pickled."""
        return self.get_full_path

    def get_localized_path(self, path: str) -> str:
        """The path of a URL inside the file system."""
        return str(self.fs._strip_protocol(path))

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        return bool(self.fs.exists(path))

    def read(self, path: str) -> bytes:
        """The contents of a file."""
        return bytes(self.fs.cat_file(path))

    def write_text(self, path: str, text: str) -> None:
        """Write a file, in UTF-8."""
        self.write(path, text.encode())

    def write(self, path: str, data: bytes) -> None:
        """Write a file and create its folders. On this machine the file is replaced atomically.

        Raises:
            OSError: it cannot be written; on this machine also if the path is no regular file.
        """
        fs = self.fs
        fs.makedirs(fs._parent(path), exist_ok=True)
        if _protocol(path) != LOCAL:
            fs.pipe_file(path, data)
            return
        with replacing(self.get_localized_path(path), 0o666) as file:
            file.write(data)

    def copy(self, lpath: str, rpath: str, recursive: bool = True) -> None:
        """Copy a file or folder of this machine to a path of the store."""
        self.fs.put(lpath, rpath, recursive=recursive)

    def read_serialized_keras_model(
        self, ckpt_path: str, model: Any = None, custom_objects: Any = None
    ) -> bytes:
        """The contents of a Keras checkpoint: a model in the format ``.keras``, or weights.

        ``model`` and ``custom_objects`` have no effect: the model is not loaded.
        """
        return self.read(ckpt_path)

    def may_replace_data(self, path: str) -> bool:
        """Whether ``path`` is free, or has prepared data that this user has written.

        The file ``PATH.horovod`` names the user who wrote the data; on this machine both also need
        the same owner, and neither may be a link.
        """
        marker = _marker_of(path)
        if _protocol(path) == LOCAL:
            data, beside = (self.get_localized_path(each) for each in (path, marker))
            if not os.path.lexists(data):
                return not os.path.lexists(beside) or self._names_this_user(marker)
            if os.path.islink(data) or os.path.islink(beside) or not os.path.isfile(beside):
                return False
            if os.stat(data).st_uid != os.stat(beside).st_uid:
                return False
        elif not self.exists(path):
            return True
        return self._names_this_user(marker)

    def claim_data(self, path: str) -> None:
        """Mark the data that will be written to ``path`` as this user's."""
        self.write_text(_marker_of(path), _user_text())

    def _names_this_user(self, marker: str) -> bool:
        return self.exists(marker) and self.read(marker) == _user_text().encode()

    def is_parquet_dataset(self, path: str) -> bool:
        """Whether there are Parquet files."""
        try:
            return bool(self.get_parquet_dataset(path).files)
        except (OSError, ValueError):
            return False

    def get_parquet_dataset(self, path: str) -> Any:
        """The Parquet files at ``path`` as a dataset of pyarrow.

        Raises:
            OSError: there are no files.
        """
        return ds.dataset(
            self.get_localized_path(path), filesystem=self.arrow_filesystem(), format="parquet"
        )

    def get_data_metadata_path(self, path: str) -> str:
        """The path of the common metadata of the Parquet files at ``path``; it may not exist."""
        return f"{self.get_localized_path(path).rstrip('/')}/_common_metadata"

    def arrow_filesystem(self) -> Any:
        """The file system of pyarrow."""
        if _protocol(self.prefix_path) == LOCAL:
            return pyarrow.fs.LocalFileSystem()
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self.fs))

    def get_train_data_path(self, idx: int | None = None) -> str:
        """The path of the training rows of a prepared dataset."""
        return _numbered(self._train_path, idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """The path of its validation rows."""
        return _numbered(self._val_path, idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        """The path of its test rows."""
        return _numbered(self._test_path, idx)

    def saving_runs(self) -> bool:
        """Whether checkpoints and logs are written."""
        return self._save_runs

    def get_runs_path(self) -> str:
        """The folder of all runs."""
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        """The folder of a run."""
        return f"{self._runs_path}/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """The path of a run's checkpoint; None without saved runs."""
        if not self._save_runs:
            return None
        return f"{self.get_run_path(run_id)}/{self._checkpoint_filename}"

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """The files with this ending in the folder of a run's checkpoints, sorted."""
        path = self.get_checkpoint_path(run_id)
        if path is None or not self.fs.isdir(path):
            return []
        return sorted(name for name in self.fs.ls(path, detail=False) if name.endswith(suffix))

    def get_logs_path(self, run_id: str) -> str | None:
        """The folder of a run's logs; None without saved runs."""
        return f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}" if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        """The last part of a checkpoint's path."""
        return self._checkpoint_filename

    def get_logs_subdir(self) -> str:
        """The last part of the logs' path."""
        return "logs"

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """A function that makes a temporary folder on this machine for a ``with`` statement."""
        return partial(tempfile.TemporaryDirectory, prefix=f"horovod-{run_id}-")

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that copies the files of a folder of this machine into the run's folder."""
        return partial(upload, self, self.get_run_path(run_id))

    def to_remote(self, run_id: str, dataset_idx: int | None) -> RemoteStore:
        """The part for the training processes."""
        return RemoteStore(
            store=self,
            train_data_path=self.get_train_data_path(dataset_idx),
            val_data_path=self.get_val_data_path(dataset_idx),
            test_data_path=self.get_test_data_path(dataset_idx),
            saving_runs=self.saving_runs(),
            runs_path=self.get_runs_path(),
            run_path=self.get_run_path(run_id),
            checkpoint_path=self.get_checkpoint_path(run_id),
            logs_path=self.get_logs_path(run_id),
            checkpoint_filename=self.get_checkpoint_filename(),
            logs_subdir=self.get_logs_subdir(),
            get_local_output_dir=self.get_local_output_dir_fn(run_id),
            sync=self.sync_fn(run_id),
        )

    def _path_or(self, path: str | None, name: str) -> str:
        return self.get_full_path(path) if path else f"{self.prefix_path.rstrip('/')}/{name}"


def upload(store: Store, path: str, folder: str) -> None:
    """Copy the files of a folder of this machine into a folder of the store."""
    for parent, _, names in os.walk(folder):
        for name in names:
            local = os.path.join(parent, name)
            with open(local, "rb") as file:
                store.write(f"{path}/{os.path.relpath(local, folder)}", file.read())


def _marker_of(path: str) -> str:
    return f"{path}.horovod"


def _user_text() -> str:
    return f"prepared by an estimator of Horovod for user {os.geteuid()}\n"


def _protocol(url: str) -> str:
    return url.split("://", 1)[0] if "://" in url else LOCAL


def _numbered(path: str, idx: int | None) -> str:
    return path if idx is None else f"{path}.{idx}"
