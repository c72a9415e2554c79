"""Sends the other ranks' metrics to rank 0 through the job's store.

A thread of each other rank writes them, so no request interrupts a rank, and no collective runs.
The metrics of other ranks are a few seconds old.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping

from horovod.core.base.checked import BadMessageError, Fields
from horovod.errors import InitError
from horovod.rendezvous.store.client import Store

PERIOD_S = 5.0
# When a rank has written its metrics, in seconds since 1970.
REPORT_TIME = "report_time_seconds"

Numbers = Mapping[str, float]
_log = logging.getLogger("horovod")


def _key(scope: str, rank: int) -> str:
    return f"metrics/{scope}{rank}"


class Reporter:
    """Writes this rank's numbers into ``store`` at once and every ``PERIOD_S`` until ``close``."""

    def __init__(self, store: Store, scope: str, rank: int, read: Callable[[], Numbers]) -> None:
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
