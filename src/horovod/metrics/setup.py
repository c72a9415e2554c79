"""Starts the export of a world's metrics, if a port is set.

The other ranks' metrics come to rank 0 through the job's store. A thread of each other rank writes
them, so no request interrupts a rank, and no collective runs. They are a few seconds old.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from horovod.core.base.checked import BadMessageError, Fields
from horovod.errors import InitError, SettingError
from horovod.metrics.progress import Numbers, Read, open_progress
from horovod.rendezvous.bootstrap import ProcessInfo, job_store
from horovod.rendezvous.store.client import Store
from horovod.settings import Settings

PERIOD_S = 5.0
# When a rank has written its metrics, in seconds since 1970.
REPORT_TIME = "report_time_seconds"
_log = logging.getLogger("horovod")


def _key(scope: str, rank: int) -> str:
    return f"metrics/{scope}{rank}"


class Reporter:
    """Writes this rank's numbers into ``store`` at once and every ``PERIOD_S`` until ``close``."""

    def __init__(self, store: Store, scope: str, rank: int, read: Read) -> None:
        self._store = store
        self._key = _key(scope, rank)
        self._read = read
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horovod-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write a last time; waits for at most a second."""
        self._is_over.set()
        self._thread.join(1.0)

    def abandon(self) -> None:
        """Nothing to do in a forked child: the thread is the parent's."""

    def _run(self) -> None:
        try:
            while True:
                is_last = self._is_over.is_set()
                report = {**self._read(), REPORT_TIME: time.time()}
                self._store.set(self._key, json.dumps(report).encode())
                if is_last:
                    return
                self._is_over.wait(PERIOD_S)
        except InitError as error:  # the job has ended
            _log.debug("metrics are not written any more: %s", error)


def reported(store: Store, scope: str, ranks: range) -> dict[int, Numbers]:
    """The last metrics of these ranks, without ranks that have written none."""
    found: dict[int, Numbers] = {}
    for rank in ranks:
        try:
            found[rank] = _numbers_in(store.get(_key(scope, rank), 0.0))
        except TimeoutError:
            continue
        except BadMessageError as error:
            _log.warning("metrics of rank %d are left out: %s", rank, error.of(f"rank {rank}"))
        except InitError as error:
            _log.debug("other ranks' metrics cannot be read: %s", error)
            break
    return found


def _numbers_in(text: bytes) -> Numbers:
    """The metrics that a ``Reporter`` has written; raises BadMessageError."""
    fields = Fields.read("metrics", text)
    return {name: fields.number(name, -1e300, 1e300) for name in fields.names}


_TOKEN = "HOROVOD_METRICS_TOKEN"
_STORE_S = 30.0


class Export(Protocol):
    """The export of a rank's metrics."""

    def close(self) -> None:
        """End it."""

    def abandon(self) -> None:
        """Leave it to the parent, in a forked child."""


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


def open_exports(identity: ProcessInfo, settings: Settings, read: Read) -> list[Export]:
    """Export the metrics that ``read`` returns, if a launcher or a port wants them.

    Rank 0 exports all ranks' at the port.

    Raises:
        InitError: the port cannot be used, or the job's store cannot be reached.
        SettingError: the address needs a token and there is none, or other users can read its file.
    """
    exports = [open_progress(os.environ, identity.rank, read), _served(identity, settings, read)]
    return [export for export in exports if export is not None]


def _served(identity: ProcessInfo, settings: Settings, read: Read) -> Export | None:
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
        SettingError: see ``open_exports``.
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
