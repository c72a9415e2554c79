"""A guest: an agent that another engine runs where it has placed a process, such as Spark or Ray.

Where ssh leads to other machines, the launcher starts agents by it. Where an engine has placed
processes, each of them takes in a *guest*: a child that listens at one address, lets in the
launcher that knows the job's secret, and is its agent (``guest_agent.py``). When the engine's
process ends, for whatever reason, so do the guest and its workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import IO

from horovod.launch.workers.python_command import python_command

__all__ = ["EmbeddedAgent", "EmbeddedAgentOrders"]

_END_S = 15.0  # two graces of the agent's, and its own end


@dataclass(frozen=True)
class EmbeddedAgentOrders:
    """What the child is told on standard input, whose end is the order to end.

    ``environment`` goes to its workers on top of what the launcher says. With
    ``ends_with_failure`` it ends as soon as one of them has failed.
    """

    listener_fd: int
    secret: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    ends_with_failure: bool
    patience_s: float

    def to_bytes(self) -> bytes:
        """One line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_bytes(cls, line: bytes) -> EmbeddedAgentOrders:
        """What ``to_bytes`` has made."""
        return cls(**json.loads(line))


class EmbeddedAgent:
    """Listens at ``host`` from construction on, ``address`` is where; to be used with ``with``.

    ``launcher`` is this node's way to the machine where the launcher is. Nobody needs to call
    anything while the guest serves; ``wait`` says how it ended. If no launcher comes within
    ``patience_s``, it ends. See ``EmbeddedAgentOrders`` for the rest.

    Raises:
        OSError: the address is not this machine's, or no process can be started.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        *,
        launcher: str,
        environment: Mapping[str, str] | None = None,
        ends_with_failure: bool = False,
        patience_s: float = 600.0,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family) as listener:
            self.address: tuple[str, int] = listener.getsockname()[:2]
            # As sshd says where the launcher comes from.
            environ = {**os.environ, "SSH_CONNECTION": f"{launcher} 0 {host} 0"}
            self._child, self._lifeline = _start(listener.fileno(), environ)
            orders = EmbeddedAgentOrders(
                listener.fileno(),
                secret.hex(),
                dict(environment or {}),
                ends_with_failure,
                patience_s,
            )
            with contextlib.suppress(BrokenPipeError):
                self._lifeline.write(orders.to_bytes())

    def wait(self) -> int:
        """Block until it has ended; 0 if that was in order, and no worker had failed."""
        return self._child.wait()

    def end(self) -> None:
        """End its workers and itself; does not wait. May be repeated, from any thread."""
        self._lifeline.close()

    def __enter__(self) -> EmbeddedAgent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _start(
    listener_fd: int, environ: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """The guest, which inherits the listening socket, and its standard input, unbuffered."""
    child = subprocess.Popen(
        python_command(sys.executable, "embedded.agent_process"),
        bufsize=0,
        stdin=subprocess.PIPE,
        env=environ,
        pass_fds=(listener_fd,),
        start_new_session=True,
    )
    assert child.stdin is not None
    return child, child.stdin
