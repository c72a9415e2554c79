"""The threads that hand out results of operations that no thread waits for.

A callback of a future may itself wait for another future, as PowerSGD's does. So there is always a
thread that takes the next result while others run callbacks.
"""

from __future__ import annotations

import atexit
import os
import threading
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


completions = Completions()
