"""Stores for the data, checkpoints and logs of estimators, on any file system of fsspec."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from horovod.spark.common.base_store import LOCAL, RemoteStore, Store

__all__ = [
    "ON_DATABRICKS",
    "AbstractFilesystemStore",
    "DBFSLocalStore",
    "FilesystemStore",
    "HDFSStore",
    "HDFSUrl",
    "LocalStore",
    "RemoteStore",
    "Store",
]

ON_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"


class AbstractFilesystemStore(Store):
    """The base class of the stores that ``create`` makes; an older name."""


class FilesystemStore(AbstractFilesystemStore):
    """On a local or mounted file system, or on another one that fsspec has a driver for.

    ``s3://``, ``gs://``, ``abfs://`` and others need the package that fsspec names, on all nodes.
    """

    @classmethod
    def matches(cls, path: str) -> bool:
        """Always."""
        return True


class LocalStore(FilesystemStore):
    """An older name of ``FilesystemStore``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            "LocalStore is deprecated, use FilesystemStore", DeprecationWarning, stacklevel=2
        )
        super().__init__(*args, **kwargs)


class HDFSUrl(NamedTuple):
    """The parts of ``hdfs://HOST:PORT/PATH``; None for a missing part."""

    prefix: str | None
    host: str | None
    port: int | None
    path: str


class HDFSStore(AbstractFilesystemStore):
    """On Hadoop's file system; needs libhdfs, as pyarrow's documentation says.

    Args:
        prefix_path: ``hdfs://HOST:PORT/PATH``, ``hdfs:///PATH`` or only the path.
        host, port: the namenode, if the path has none; by default that of Hadoop's configuration.
        user, kerb_ticket, extra_conf: as for pyarrow's ``HadoopFileSystem``.
        driver: ``libhdfs``.
        args, kwargs: as for ``Store``.

    Raises:
        ValueError: paths name different namenodes, or the driver is unknown.
    """

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Mapping[str, str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if driver != "libhdfs":
            raise ValueError(f"driver={driver!r}: pyarrow has the driver 'libhdfs' only")
        found = self.parse_url(prefix_path)
        for name, given, in_path in (("host", host, found.host), ("port", port, found.port)):
            if given is not None and in_path is not None and given != in_path:
                raise ValueError(f"{name}={given!r}, but {prefix_path} names {in_path!r}")
        self._host, self._port = found.host or host, found.port or port
        super().__init__(prefix_path, *args, **kwargs)
        self.storage_options = {
            "host": self._host or "default",
            "port": self._port or 0,
            "user": user,
            "kerb_ticket": kerb_ticket,
            "extra_conf": dict(extra_conf or {}) or None,
            **self.storage_options,
        }

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether it is an ``hdfs://`` URL."""
        return path.startswith("hdfs://")

    @staticmethod
    def parse_url(url: str) -> HDFSUrl:
        """The parts of a URL or path. Raises ValueError for a port that is no number."""
        found = urlsplit(url)
        prefix = f"{found.scheme}://" if found.scheme else None
        return HDFSUrl(prefix, found.hostname, found.port, found.path)

    def get_full_path(self, path: str) -> str:
        """The URL of a path, with the namenode if it is known.

        Raises:
            ValueError: the path has another namenode.
        """
        found = urlsplit(path)
        if (found.scheme or "hdfs") != "hdfs":
            raise ValueError(f"{path} is not on HDFS")
        own = ":".join(str(part) for part in (self._host, self._port) if part)
        if found.netloc and found.netloc != own:
            raise ValueError(f"{path} is in another namespace than hdfs://{own}")
        return f"hdfs://{own}{found.path}"


class DBFSLocalStore(AbstractFilesystemStore):
    """On Databricks' file system, through the folder ``/dbfs`` of each node.

    Args:
        prefix_path: ``/dbfs/PATH``, ``dbfs:/PATH`` or ``file:///dbfs/PATH``.
        args, kwargs: as for ``Store``.

    Raises:
        ValueError: the path has another form.
    """

    _default_checkpoint_filename = "checkpoint.tf"

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether this process runs on Databricks, and the path is on its file system."""
        return ON_DATABRICKS in os.environ and cls.matches_dbfs(path)

    @staticmethod
    def matches_dbfs(path: str) -> bool:
        """Whether the path is on Databricks' file system."""
        return re.match(r"(dbfs:/|/dbfs/|file:(//)?/dbfs/)", path) is not None

    def get_full_path(self, path: str) -> str:
        """``file:///dbfs/PATH``.

        Raises:
            ValueError: the path is not on Databricks' file system.
        """
        return f"{LOCAL}://{self.normalize_path(path)}"

    @classmethod
    def normalize_path(cls, path: str) -> str:
        """``/dbfs/PATH``.

        Raises:
            ValueError: the path is not on Databricks' file system.
        """
        if not cls.matches_dbfs(path):
            raise ValueError(f"{path} is none of /dbfs/PATH, dbfs:/PATH, file:///dbfs/PATH")
        rest = re.sub(r"^(dbfs:/|/dbfs/|file:(//)?/dbfs/)/*", "", path)
        return f"/dbfs/{rest}"
