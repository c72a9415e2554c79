"""Time limits of operations that no thread waits for: their futures get an error in time.

A thread that waits for a work counts the time itself. ``DistributedDataParallel`` on GPUs waits for
futures alone, and no thread counts their time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable


class Deadlines:
    """Calls back for what is not removed within its time, on a thread of its own."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[object, tuple[float, Callable[[], None]]] = {}
        self._next = 0.0  # when the thread looks again
        self._has_thread = False

    def add(self, key: object, limit_s: float, expire: Callable[[], None]) -> None:
        """Call ``expire`` after ``limit_s`` seconds, once, unless ``key`` is removed before."""
        at = time.monotonic() + limit_s
        with self._changed:
            self._waiting[key] = (at, expire)
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="horovod-deadlines", daemon=True).start()
            elif at < self._next:
                self._changed.notify()

    def remove(self, key: object) -> bool:
        """Forget it; whether its time was not over."""
        with self._changed:
            return self._waiting.pop(key, None) is not None

    def _run(self) -> None:
        while True:
            for expire in self._take_expired():
                # Callbacks of a future may wait for others, or raise: the time of those goes on.
                threading.Thread(target=expire, name="horovod-expired", daemon=True).start()

    def _take_expired(self) -> list[Callable[[], None]]:
        """Wait for the earliest that was there at the beginning, or for an earlier one."""
        with self._changed:
            now = time.monotonic()
            expired = [key for key, (at, _) in self._waiting.items() if at <= now]
            if not expired:
                self._next = min((at for at, _ in self._waiting.values()), default=now + 3600.0)
                self._changed.wait(min(self._next - now, threading.TIMEOUT_MAX))
            return [self._waiting.pop(key)[1] for key in expired]


deadlines = Deadlines()
