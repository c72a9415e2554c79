"""What elastic workers log on its way to the caller: through a store that the caller keeps.

They are children of actors, not actors, and know no queue of Ray's.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from horovod.launch.by_value import dumps
from horovod.rendezvous.authentication import SECRET_BYTES
from horovod.rendezvous.store import StoreClient
from horovod.rendezvous.store_server import StoreServer

__all__ = ["LogPath", "LogStore"]

_CONNECT_S = 30.0


@dataclass
class LogPath:
    """A worker's way to the store; see ``ray_logger.configure``."""

    address: tuple[str, int]
    secret: bytes = field(repr=False)
    _client: StoreClient | None = None

    def put(self, item: Any) -> None:
        """Send a dictionary. Raises ValueError if it takes more than about 64 KiB."""
        if self._client is None or self._client.is_closed:
            self._client = StoreClient(self.address, self.secret, timeout_s=_CONNECT_S)
        self._client.set(f"log/{os.getpid()}", dumps(item))


class LogStore:
    """Within ``with``: dictionaries arrive in ``arrived``, pickled.

    What a worker has logged is there before its ``log`` returns.
    """

    def __init__(self, host: str, arrived: SimpleQueue[bytes | None]) -> None:
        secret = secrets.token_bytes(SECRET_BYTES)
        self._server = StoreServer(
            secret, addresses=[(host, 0)], on_set=lambda key, value: arrived.put(value)
        )
        self.path = LogPath(self._server.address, secret)

    def __enter__(self) -> LogStore:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
