"""Starts the export of a world's metrics, if a port is set."""

from __future__ import annotations

import ipaddress
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from horovod.errors import SettingError
from horovod.metrics.exchange import REPORT_TIME, Numbers, Reporter, reported
from horovod.metrics.progress import open_progress
from horovod.rendezvous.bootstrap import ProcessInfo, job_store
from horovod.settings import Settings

_TOKEN = "HOROVOD_METRICS_TOKEN"
_STORE_S = 30.0


class Export(Protocol):
    """The export of a rank's metrics."""

    def close(self) -> None:
        """End it."""

    def abandon(self) -> None:
        """Leave it to the parent, in a forked child."""


class _Exports:
    """Several as one."""

    def __init__(self, exports: Sequence[Export]) -> None:
        self._exports = exports

    def close(self) -> None:
        """See ``Export``."""
        for export in self._exports:
            export.close()

    def abandon(self) -> None:
        """See ``Export``."""
        for export in self._exports:
            export.abandon()


def check_export(settings: Settings) -> None:
    """Refuse metrics that are not possible; the same on all ranks, before the rendezvous.

    Raises:
        SettingError: prometheus-client is missing.
    """
    if settings.metrics_port and find_spec("prometheus_client") is None:
        raise SettingError(
            f"HOROVOD_METRICS_PORT={settings.metrics_port}: prometheus-client is not installed; "
            "pip install 'horovod[metrics]'"
        )


def open_export(identity: ProcessInfo, settings: Settings, read: Callable[[], Numbers]) -> Export:
    """Export the metrics that ``read`` returns, if a launcher or a port wants them.

    Rank 0 exports all ranks' at the port.

    Raises:
        InitError: the port cannot be used, or the job's store cannot be reached.
        SettingError: the address needs a token and there is none, or other users can read its file.
    """
    exports = [open_progress(os.environ, identity.rank, read), _served(identity, settings, read)]
    return _Exports([export for export in exports if export is not None])


def _served(
    identity: ProcessInfo, settings: Settings, read: Callable[[], Numbers]
) -> Export | None:
    if not settings.metrics_port:
        return None
    rank, size, scope = identity.rank, identity.size, identity.scope
    store = job_store(identity, os.environ, _STORE_S) if size > 1 else None
    if store is not None and rank != 0:
        return Reporter(store, scope, rank, read)
    # Here, because prometheus-client is an extra.
    from horovod.metrics.endpoint import Endpoint, JobCollector

    def read_all() -> Mapping[int, Numbers]:
        others = {} if store is None else reported(store, scope, range(1, size))
        return {0: {**read(), REPORT_TIME: time.time()}, **others}

    token = token_of(settings, os.environ)
    collector = JobCollector(read_all, size)
    return Endpoint(settings.metrics_address, settings.metrics_port, token, collector)


def token_of(settings: Settings, environ: Mapping[str, str]) -> str:
    """The token that requests need; empty for none, which only loopback addresses allow.

    Raises:
        SettingError: see ``open_export``.
    """
    path = settings.metrics_token_file
    token = _token_in(Path(path)) if path else environ.get(_TOKEN, "")
    if not token and not _is_loopback(settings.metrics_address):
        raise SettingError(
            f"HOROVOD_METRICS_ADDRESS={settings.metrics_address}: others reach this address, so a "
            f"token is needed: {_TOKEN}, or a file that HOROVOD_METRICS_TOKEN_FILE names"
        )
    return token


def _token_in(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            status = os.fstat(file.fileno())
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"HOROVOD_METRICS_TOKEN_FILE={path}: {error}") from None
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingError(
            f"HOROVOD_METRICS_TOKEN_FILE={path}: others can read it; it has to be yours, with mode "
            "0600"
        )
    if not text:
        raise SettingError(f"HOROVOD_METRICS_TOKEN_FILE={path}: it is empty")
    return text


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
