"""The transport of elastic workers' logs: a store in the caller.

Elastic workers are children of actors and cannot use a queue of Ray. They get the store's secret in
their environment, which Ray sends to the actors; the launcher sends calls in the clear. Every
dictionary is sent with an authentication code over a running number, and is unpickled only if the
code is right.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from horovod.launch.calls.by_value import dumps
from horovod.rendezvous.base.authentication import (
    CODE_BYTES,
    SECRET_BYTES,
    RecordCodes,
    derive_key,
)
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

_log = logging.getLogger("horovod.ray")

_CONNECT_S = 30.0
_SECRET = "_HOROVOD_RAY_LOG_SECRET"
_PREFIX = "log/"


@dataclass(frozen=True)
class LogPath:
    """The address of the store."""

    address: tuple[str, int]

    def open(self) -> LogSender:
        """A sender for a worker, whose environment has the secret."""
        return LogSender(self.address, bytes.fromhex(os.environ[_SECRET]))


class LogSender:
    """A queue for ``ray_logger.configure``; threads may share it."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        self._address = address
        self._secret = secret
        self._lock = threading.Lock()
        self._client: StoreClient | None = None

    def put(self, item: Any) -> None:
        """Send a dictionary. Raises ValueError if it takes more than about 64 KiB."""
        data = dumps(item)
        with self._lock:
            client = self._connected()
            try:
                client.set(self._key, self._codes.next(data) + data)
            except BaseException:
                client.close()  # the next number is unknown
                raise

    def _connected(self) -> StoreClient:
        if self._client is None or self._client.is_closed:
            self._client = StoreClient(self._address, self._secret, timeout_s=_CONNECT_S)
            self._key = _PREFIX + secrets.token_hex(8)
            self._codes = _codes_of(self._secret, self._key)
        return self._client


class LogStore:
    """Puts the pickled dictionaries of workers into ``arrived``, within ``with``.

    A dictionary is there before the worker's ``log`` returns. ``environment`` is for the workers.
    """

    def __init__(self, host: str, arrived: SimpleQueue[bytes | None]) -> None:
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._arrived = arrived
        self._codes: dict[str, RecordCodes] = {}
        self._server = StoreServer(self._secret, addresses=[(host, 0)], on_set=self._take)
        self.path = LogPath(self._server.address)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variable with the secret; Ray sends it to the workers."""
        return {_SECRET: self._secret.hex()}

    def __enter__(self) -> LogStore:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _take(self, key: str, value: bytes) -> None:
        codes = self._codes.setdefault(key, _codes_of(self._secret, key))
        code, data = value[:CODE_BYTES], value[CODE_BYTES:]
        if codes.is_next(code, data):
            self._arrived.put(data)
        else:
            _log.error("ignored a log of a worker (%s): it was altered on the way", key)


def _codes_of(secret: bytes, key: str) -> RecordCodes:
    return RecordCodes(derive_key(secret, b"horovod log", key.encode()))
