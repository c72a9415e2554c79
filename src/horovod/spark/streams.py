"""Workers write to descriptors; what a caller has may be any object with ``write``."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["descriptors_of"]

_READ_BYTES = 64 * 1024


@contextlib.contextmanager
def descriptors_of(stdout: Any, stderr: Any) -> Iterator[tuple[int | None, int | None]]:
    """Descriptors whose text goes to these; None stays None. All has been written at the end."""
    with contextlib.ExitStack() as open_pipes:
        yield (
            None if stdout is None else open_pipes.enter_context(_pipe_to(stdout)),
            None if stderr is None else open_pipes.enter_context(_pipe_to(stderr)),
        )


@contextlib.contextmanager
def _pipe_to(stream: Any) -> Iterator[int]:
    reader, writer = os.pipe()
    thread = threading.Thread(target=_copy, args=(reader, stream), daemon=True)
    thread.start()
    try:
        yield writer
    finally:
        os.close(writer)
        thread.join()


def _copy(reader: int, stream: Any) -> None:
    with open(reader, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            stream.write(line)
