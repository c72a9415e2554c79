"""Waits for processes of workers and for their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

_PATIENCE_S = 500


def pids_in(folder: Path, count: int, is_over: Callable[[], bool]) -> list[int]:
    """The numbers in the files ``*.pid`` in ``folder``, once there are ``count`` files."""
    deadline = time.monotonic() + _PATIENCE_S
    while len(files := list(folder.glob("*.pid"))) < count:
        assert not is_over()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [int(file.read_text()) for file in files]


def assert_end(pids: Sequence[int]) -> None:
    """Wait until all processes have ended."""
    deadline = time.monotonic() + _PATIENCE_S
    while left := [pid for pid in pids if psutil.pid_exists(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
