"""The threads that end operations that no thread waits for: with their results, or in time.

A callback of a future may itself wait for another future, as PowerSGD's does. So there is always a
thread that takes the next result while others run callbacks.

A thread that waits for a work counts the time itself. ``DistributedDataParallel`` on GPUs waits for
futures alone, and no thread counts their time.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from horovod import _native
from horovod.core import world

if TYPE_CHECKING:
    End = Callable[[list[_native.Output], BaseException | None], None]

_MOST_IDLE = 2


class Completions:
    """Calls back when operations end, on threads of its own."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)
        atexit.register(self._end)

    def add(self, engine: _native.Engine, handle: int, end: End) -> None:
        """Call ``end`` with the operation's outputs, or its error. No thread may wait for it."""
        with self._lock:
            self._ends[handle] = end
            if not self._threads:
                self._start_thread()
        self._native.add(engine, handle)

    def close(self) -> None:
        """End the threads; what they run is waited for."""
        with self._lock:
            threads = list(self._threads)
        self._native.close()
        for thread in threads:
            thread.join()
        self._begin()

    def _end(self) -> None:
        """Before Python ends, which ends the process if a daemon thread is in native code."""
        world.shutdown()  # callbacks may wait for operations
        self.close()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._native = _native.Completions()
        self._ends: dict[int, End] = {}
        self._threads: set[threading.Thread] = set()
        self._idle = 0

    def _start_thread(self) -> None:
        """Under the lock."""
        thread = threading.Thread(target=self._run, name="horovod-completions", daemon=True)
        self._threads.add(thread)
        self._idle += 1
        thread.start()

    def _run(self) -> None:
        while (taken := self._native.take()) is not None:
            handle, outputs, error = taken
            with self._lock:
                end = self._ends.pop(handle)
                self._idle -= 1
                if self._idle == 0:
                    self._start_thread()
            end(outputs, cast("Exception | None", error))
            del outputs, error, taken, end  # no tensor is kept until the next result
            with self._lock:
                self._idle += 1
                if self._idle > _MOST_IDLE:
                    break
        with self._lock:
            self._idle -= 1
            self._threads.discard(threading.current_thread())


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


completions = Completions()
deadlines = Deadlines()
