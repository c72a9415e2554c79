"""What a worker does while the driver of its elastic job is away and may come back.

It connects to the store again until its patience ends, and asks again: the new driver's store is
empty. The driver repeats its answer if it has given one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from horovod.errors import InitError
from horovod.rendezvous.store.client import Store

__all__ = ["DriverAbsence", "absence_in"]

_PATIENCE = "_HOROVOD_PATIENCE"
_PAUSE_S = 0.2

Result = TypeVar("Result")


class DriverAbsence:
    """For ``limit_s`` a driver is waited for; 0: one that has gone does not come back."""

    def __init__(self, limit_s: float = 0.0) -> None:
        self.limit_s = limit_s

    def with_store(self, open_store: Callable[[], Store], act: Callable[[Store], Result]) -> Result:
        """What ``act`` returns; begun again with another connection when its store is lost.

        Raises:
            InitError: the store has been out of reach for the limit.
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


def absence_in(environ: Mapping[str, str]) -> DriverAbsence:
    """What the driver has told the worker with this environment."""
    return DriverAbsence(float(environ.get(_PATIENCE, "0")))
