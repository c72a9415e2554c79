"""Files through which ranks of a peer tell each other their addresses; runs in the workers."""

from __future__ import annotations

import socket
import time
from pathlib import Path

__all__ = ["free_address", "publish", "read_published"]

_TIMEOUT_S = 60


def free_address() -> str:
    """An address of this machine with a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def publish(path: Path, text: str) -> None:
    """Write the file at once: a reader never sees a part of it."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)


def read_published(path: Path) -> str:
    """The text of the file as soon as it exists; ``RuntimeError`` after a minute."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no rank wrote {path}")
        time.sleep(0.01)
    return path.read_text()
