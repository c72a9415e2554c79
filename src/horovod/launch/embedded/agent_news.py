"""Which embedded agents an elastic job has: the engine's side tells the job's launcher.

The caller of ``run_call`` keeps an ``AgentDirectory``. What it writes goes through the standard
input of the supervisor, after the plan, and arrives as ``AgentUpdates``. So neither addresses nor
the secret are in a file or on a command line.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
from collections.abc import Callable, Mapping
from typing import IO, BinaryIO, NamedTuple

from horovod.launch.model.job_plan import EmbeddedAgentAddress


class FoundAgent(NamedTuple):
    """An embedded agent, and how many workers may run with it."""

    address: EmbeddedAgentAddress
    slots: int = 1


# By name: ``node``, or ``node/agent`` where a node has several. A name is never used again for
# another agent.
FoundAgents = Mapping[str, FoundAgent]


class AgentDirectory:
    """The engine's side; from any thread, before, during and after the job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._message: FoundAgents | str = {}
        self._stream: IO[bytes] | None = None

    def write(self, agents: FoundAgents) -> None:
        """These are all agents now; others are gone."""
        self._tell(dict(agents))

    def give_up(self, reason: str) -> None:
        """There will be no agents any more: the job fails with ``reason``."""
        self._tell(reason)

    def open(self, stream: IO[bytes]) -> None:
        """Send everything to a supervisor, first what was written before."""
        with self._lock:
            self._stream = stream
            self._send()

    def close(self) -> None:
        """Send nothing any more."""
        with self._lock:
            self._stream = None

    def _tell(self, message: FoundAgents | str) -> None:
        with self._lock:
            self._message = message
            self._send()

    def _send(self) -> None:
        if self._stream is not None:
            rest = memoryview(pickle.dumps(self._message))
            with contextlib.suppress(OSError):  # the supervisor has ended, which its parent sees
                while rest:
                    rest = rest[self._stream.write(rest) or 0 :]


class AgentUpdates:
    """The launcher's side: the agents, or the reason why there will be none any more."""

    def __init__(self) -> None:
        self._messages = queue.SimpleQueue[FoundAgents | str]()

    def listen(self, stream: BinaryIO) -> None:
        """Read messages until the stream ends; on a thread of its own."""
        with contextlib.suppress(EOFError, pickle.UnpicklingError, OSError):
            while True:
                self._messages.put(pickle.load(stream))

    def tell(self, listener: Callable[[FoundAgents | str], None]) -> None:
        """Call ``listener`` with each message, on a thread that lasts as long as the process."""

        def tell() -> None:
            while True:
                listener(self._messages.get())

        threading.Thread(target=tell, name="horovod-agents", daemon=True).start()
