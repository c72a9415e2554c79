"""The progress of a launcher's ranks, in memory that the launcher reads for its status line.

The launcher makes the memory and names it in ``_HOROVOD_PROGRESS``. A thread of each rank on the
launcher's machine writes a row of numbers twice a second. The memory begins with random bytes that
the variable names too, so ranks of another machine or container do not take it for another file.
"""

from __future__ import annotations

import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

VARIABLE = "_HOROVOD_PROGRESS"
PERIOD_S = 0.5
_TOKEN_BYTES = 16
_ROW = struct.Struct("<QQQ")

Numbers = Mapping[str, float]
Read = Callable[[], Numbers]


class Row(NamedTuple):
    """The progress of a process since its first ``init``.

    Steps, and nanoseconds in all and in waits.
    """

    steps: int
    elapsed_ns: int
    blocked_ns: int


class ProgressMemory:
    """The launcher's side, for ranks below ``size``."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._token = os.urandom(_TOKEN_BYTES)
        self._fd = os.memfd_create("horovod-progress")
        os.write(self._fd, self._token + bytes(_ROW.size * size))

    @property
    def environment(self) -> dict[str, str]:
        """The variable that ranks need."""
        return {VARIABLE: f"/proc/{os.getpid()}/fd/{self._fd}:{self._token.hex()}"}

    def rows(self) -> dict[int, Row]:
        """The rows of the ranks that have written one."""
        found = os.pread(self._fd, _ROW.size * self._size, _TOKEN_BYTES)
        whole = found[: len(found) // _ROW.size * _ROW.size]  # a rank may have cut the memory
        rows = (Row(*numbers) for numbers in _ROW.iter_unpack(whole))
        return {rank: row for rank, row in enumerate(rows) if row.elapsed_ns}

    def close(self) -> None:
        """Free the memory."""
        os.close(self._fd)


_begin_ns = 0  # of this process' first world: ``read`` counts over all its worlds


class ProgressWriter:
    """Writes the row of ``rank`` into ``fd``, which it owns, until ``close`` and then once more."""

    def __init__(self, fd: int, rank: int, read: Read) -> None:
        global _begin_ns
        self._fd = fd
        self._offset = _TOKEN_BYTES + _ROW.size * rank
        self._read = read
        _begin_ns = _begin_ns or time.monotonic_ns()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horovod-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it; waits for at most a second."""
        self._is_over.set()
        self._thread.join(1.0)

    def abandon(self) -> None:
        """In a forked child, whose parent goes on writing."""
        os.close(self._fd)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._is_over.wait(PERIOD_S)
            numbers = self._read()
            elapsed_ns = time.monotonic_ns() - _begin_ns
            blocked_ns = int(numbers["blocked_seconds"] * 1e9)
            row = _ROW.pack(int(numbers["steps"]), elapsed_ns, blocked_ns)
            os.pwrite(self._fd, row, self._offset)
        os.close(self._fd)


def open_progress(environ: Mapping[str, str], rank: int, read: Read) -> ProgressWriter | None:
    """Write this rank's progress, if its launcher wants to read it and is on this machine."""
    path, _, token = environ.get(VARIABLE, "").rpartition(":")
    if not path:
        return None
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    # On another machine the same path may lead to a file or a pipe of another process.
    end = _TOKEN_BYTES + _ROW.size * (rank + 1)
    status = os.fstat(fd)
    is_memory = stat.S_ISREG(status.st_mode) and status.st_size >= end
    if is_memory and os.pread(fd, _TOKEN_BYTES, 0).hex() == token:
        return ProgressWriter(fd, rank, read)
    os.close(fd)
    return None
