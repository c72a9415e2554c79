"""Workers send dictionaries to the callbacks of ``run`` and ``execute`` while these run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["configure", "log"]


_queues: list[Any] = []


def configure(queue: Any) -> None:
    """Let ``log`` put dictionaries into ``queue``, which has a method ``put``; None drops them."""
    _queues[:] = [] if queue is None else [queue]


def log(info_dict: Mapping[str, Any]) -> None:
    """Send a dictionary to the callbacks, if there are any; blocks until it is sent."""
    for queue in _queues:
        queue.put(dict(info_dict))
