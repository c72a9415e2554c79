"""Which guests an elastic job has: told by whoever sees the engine, heard by the job's launcher.

The caller of ``run_call`` keeps a ``AgentDirectory``; what is written into it goes through the
standard input of the supervisor, behind the plan, and arrives as ``AgentUpdates``. So neither
addresses nor the secret are in a file or on a command line.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from horovod.launch.model.job_plan import EmbeddedAgentAddress

__all__ = ["AgentDirectory", "AgentUpdates", "FoundAgent", "FoundAgents"]


@dataclass(frozen=True)
class FoundAgent:
    """A guest that is there, and how many workers may run with it."""

    address: EmbeddedAgentAddress
    slots: int = 1


# By name: ``node``, or ``node/guest`` where a node has several. A name never comes again for
# another guest.
FoundAgents = Mapping[str, FoundAgent]


class _Stream(Protocol):
    def write(self, data: memoryview, /) -> int | None:
        """Some of it."""


class AgentDirectory:
    """The engine's side; from any thread, before, in and after the job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._message: FoundAgents | str = {}
        self._stream: _Stream | None = None

    def write(self, agents: FoundAgents) -> None:
        """These are the guests now; who is not among them is gone."""
        self._tell(dict(agents))

    def give_up(self, reason: str) -> None:
        """There will be no guests any more: the job fails with ``reason``."""
        self._tell(reason)

    def open(self, stream: _Stream) -> None:
        """From now on tell a supervisor, first what is written already."""
        with self._lock:
            self._stream = stream
            self._send()

    def close(self) -> None:
        """It need not hear any more."""
        with self._lock:
            self._stream = None

    def _tell(self, message: FoundAgents | str) -> None:
        with self._lock:
            self._message = message
            self._send()

    def _send(self) -> None:
        if self._stream is not None:
            rest = memoryview(pickle.dumps(self._message))
            with contextlib.suppress(OSError):  # it has ended, which its parent sees
                while rest:
                    rest = rest[self._stream.write(rest) or 0 :]


class AgentUpdates:
    """The launcher's side; ``fileno`` is readable when ``latest`` has changed.

    That are the guests, or why there will be none any more.
    """

    def __init__(self) -> None:
        self.latest: FoundAgents | str = {}
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """What to wait for."""
        return self._event_fd

    def listen(self, stream: BinaryIO) -> None:
        """Take over what comes until it ends; on a thread of its own."""
        with contextlib.suppress(EOFError, pickle.UnpicklingError, OSError):
            while True:
                self.latest = pickle.load(stream)
                os.eventfd_write(self._event_fd, 1)

    def clear(self) -> None:
        """What there was has been taken."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event_fd)
