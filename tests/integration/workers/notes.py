"""Notes of ranks for each other and for the test: small files in the directory $NOTES."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 500


def _path(name: str) -> Path:
    return Path(os.environ["NOTES"], name)


def leave(name: str, fact: Any = None) -> None:
    """Write a note at once: a reader never sees a part of it."""
    unfinished = _path(f".{name}.{os.getpid()}")
    unfinished.write_text(json.dumps(fact))
    unfinished.rename(_path(name))


def read(name: str) -> Any:
    """The content of the note, as soon as it exists."""
    until(_path(name).exists)
    return json.loads(_path(name).read_text())


def read_from_each(name: str, ranks: int) -> list[Any]:
    """The contents of ``name.0``, ``name.1``, ..."""
    return [read(f"{name}.{rank}") for rank in range(ranks)]


def until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds, with a deadline."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} did not come true")
        time.sleep(0.001)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; it may be a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
