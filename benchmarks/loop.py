"""The loop that most benchmarks measure; runs in the workers."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Loop"]


class Loop:
    """One operation, called again and again; derived classes prepare ``_run``."""

    def __init__(self, contestant: Any) -> None:
        self._contestant = contestant
        self._run: Callable[[], Any] = lambda: None

    def measure(self, *, iterations: int) -> float:
        """Seconds per iteration on this rank; all ranks start together."""
        run = self._run
        self._contestant.barrier()
        self._wait()
        start = time.perf_counter()
        for _ in range(iterations):
            run()
        self._wait()
        seconds = time.perf_counter() - start
        self._contestant.barrier()  # a rank that waits outside of MPI would delay its peers
        return seconds / iterations

    def release(self) -> None:
        """Free the operation's memory before the next one is prepared."""
        self._run = lambda: None
        gc.collect()

    def _wait(self) -> None:
        """Wait for the device, if the operation uses one."""
