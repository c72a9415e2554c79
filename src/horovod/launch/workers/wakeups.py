"""Signals and calls from other threads as something that a selector can wait for.

Python's own signal handlers run between two bytecodes of the main thread. The interpreter also
writes the signals' numbers into a socket. That wakes the launcher's only wait, without a race and
without polling.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AWAITED = (signal.SIGCHLD, *_ENDING)


class Wakeups:
    """Within ``with``: SIGCHLD, SIGINT, SIGTERM and SIGHUP make ``fileno`` readable.

    A signal that was ignored on entry (``nohup``, a shell's background job) stays ignored. One that
    was blocked is not blocked meanwhile, also not in children: a parent that waits for signals with
    ``sigwait`` has passed its mask on. Main thread only, except for ``call``.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._calls: deque[Callable[[], None]] = deque()
        self._handlers: dict[int, Any] = {}
        self._blocked: set[int] = set()
        self._wakeup_fd = -1
        self._is_watching = False

    def __enter__(self) -> Wakeups:
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # First: a signal that comes in between must not be lost in a handler that does nothing.
        self._wakeup_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._is_watching = True
        try:
            # The interpreter writes the wakeup only if there is a handler.
            for signum in _AWAITED:
                if signum == signal.SIGCHLD or signal.getsignal(signum) != signal.SIG_IGN:
                    self._handlers[signum] = signal.signal(signum, lambda *_: None)
            before = signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
            self._blocked = before.intersection(_AWAITED)
        except BaseException:  # from a handler that was there before
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()
        self._reader.close()
        self._writer.close()

    def restore(self) -> None:
        """Restore the signal handlers and the mask of the entry."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)
        self._blocked = set()
        if self._is_watching:
            signal.set_wakeup_fd(self._wakeup_fd)
            self._is_watching = False
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        self._handlers.clear()

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._reader.fileno()

    def call(self, action: Callable[[], None]) -> None:
        """Have the main thread call ``action`` soon; from any thread."""
        self._calls.append(action)
        with contextlib.suppress(OSError):  # full, so it wakes anyway; or nothing waits any more
            self._writer.send(b"\0")

    def take(self) -> list[int]:
        """Do what other threads have asked for, and return the signals since the last call.

        It reads all wakeups first, so a call that comes later makes ``fileno`` readable again.
        """
        numbers: list[int] = []
        with contextlib.suppress(BlockingIOError):
            while received := self._reader.recv(4096):
                numbers += [number for number in received if number]
        self.take_calls()
        return numbers

    def take_calls(self) -> None:
        """Do what other threads have asked for since the last time."""
        while self._calls:
            self._calls.popleft()()
