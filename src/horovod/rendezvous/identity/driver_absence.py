"""What a worker does while the driver of its elastic job is gone and may come back.

It connects to the store again until a limit, and asks again, since the new driver's store is empty.
The driver repeats an answer that it has given before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from horovod.errors import InitError
from horovod.rendezvous.store.client import Store

__all__ = ["DriverAbsence", "driver_absence_in"]

_LIMIT = "_HOROVOD_PATIENCE"
_PAUSE_S = 0.2

Result = TypeVar("Result")


class DriverAbsence:
    """How long a worker waits for a driver; ``limit_s`` 0: a driver does not come back."""

    def __init__(self, limit_s: float = 0.0) -> None:
        self.limit_s = limit_s

    def with_store(self, open_store: Callable[[], Store], act: Callable[[Store], Result]) -> Result:
        """The result of ``act``, which starts again with a new connection when the store is lost.

        Raises:
            InitError: the store cannot be reached for ``limit_s``.
        """
        gone_since: float | None = None
        while True:
            try:
                store = open_store()
                gone_since = None
                return act(store)
            except InitError:
                now = time.monotonic()
                gone_since = now if gone_since is None else gone_since
                if now - gone_since >= self.limit_s:
                    raise
                time.sleep(_PAUSE_S)


def driver_absence_in(environ: Mapping[str, str]) -> DriverAbsence:
    """The limit that the driver has put into this environment."""
    return DriverAbsence(float(environ.get(_LIMIT, "0")))
