"""Notes that ranks leave for each other and for the test: small files in the directory $NOTES."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0


def _path(name: str) -> Path:
    return Path(os.environ["NOTES"], name)


def leave(name: str, fact: Any = None) -> None:
    """Write a note whole: whoever finds it can read it."""
    unfinished = _path(f".{name}.{os.getpid()}")
    unfinished.write_text(json.dumps(fact))
    unfinished.rename(_path(name))


def read(name: str) -> Any:
    """What the note says, once it is there."""
    until(_path(name).exists)
    return json.loads(_path(name).read_text())


def read_from_each(name: str, ranks: int) -> list[Any]:
    """What ``name.0``, ``name.1``, ... say."""
    return [read(f"{name}.{rank}") for rank in range(ranks)]


def until(condition: Callable[[], bool]) -> None:
    """Look again and again, with a deadline."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} did not come true")
        time.sleep(0.001)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, though nobody may have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
