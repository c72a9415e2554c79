"""Threads that a limit of the system may refuse."""

from __future__ import annotations

import errno
import threading


def start(thread: threading.Thread) -> None:
    """Start ``thread``.

    Raises:
        OSError: EAGAIN, the system starts no further thread. Python says so with a RuntimeError,
            which could also come from a mistake.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from None
