"""What workers say, on its way from the store's thread to the driver's loop."""

from __future__ import annotations

import contextlib
import os
from collections import deque

from horovod.rendezvous.identity.elastic_messages import read_key

__all__ = ["Mailbox", "Message"]

# Worker, word, for which time, and what it carries; the words are those of ``WorkerKeys``.
Message = tuple[int, str, int, bytes]


class Mailbox:
    """``fileno`` is readable while there is something in it."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """What to wait for."""
        return self._event_fd

    def put(self, key: str, value: bytes) -> None:
        """Take ``value`` if a worker has set it for the driver; from any thread."""
        read = read_key(key)
        if read is not None:
            self._messages.append((*read, value))
            os.eventfd_write(self._event_fd, 1)

    def take(self) -> list[Message]:
        """All there is, in its order."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event_fd)
        messages = []
        while self._messages:
            messages.append(self._messages.popleft())
        return messages

    def close(self) -> None:
        """Nothing is put into it any more."""
        os.close(self._event_fd)
