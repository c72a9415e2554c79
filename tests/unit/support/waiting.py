"""Waiting for events in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 500


def until(found: Callable[[], Any]) -> Any:
    """The first true result of ``found``."""
    deadline = time.monotonic() + PATIENCE_S
    while not (result := found()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return result
