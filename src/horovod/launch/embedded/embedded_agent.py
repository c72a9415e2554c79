"""An embedded agent: an agent that another engine, such as Spark or Ray, runs in its processes.

Where ssh leads to other machines, the launcher starts agents by it. Where an engine has placed
processes, each of them starts an *embedded agent*: a child that listens at one address, accepts the
launcher that knows the job's secret, and is its agent (``agent_process.py``). When the engine's
process ends, for whatever reason, the agent and its workers end.
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
from typing import IO

from horovod.launch.workers.python_command import python_command

_END_S = 15.0  # two graces of the agent's, and its own end


@dataclass(frozen=True)
class EmbeddedAgentOrders:
    """What the child reads from standard input, as a line of JSON. The end of that ends it.

    ``environment`` goes to its workers on top of the launcher's. With ``ends_with_failure`` it ends
    as soon as a worker has failed.
    """

    listener_fd: int
    secret: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    ends_with_failure: bool
    patience_s: float


class EmbeddedAgent:
    """Listens at ``host``, on ``address``, from construction on; to be used with ``with``.

    ``launcher`` is the address of the launcher's machine, as this node reaches it. The agent serves
    by itself; ``wait`` returns how it ended. If no launcher connects within ``patience_s``, it
    ends. See ``EmbeddedAgentOrders`` for the rest.

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
            # As sshd tells the launcher's address.
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
                self._lifeline.write(json.dumps(asdict(orders)).encode() + b"\n")

    def wait(self) -> int:
        """Block until it has ended; 0 if the job ended it and no worker had failed."""
        return self._child.wait()

    def end(self) -> None:
        """End its workers and itself; does not wait. May be repeated, from any thread."""
        self._lifeline.close()

    def __enter__(self) -> EmbeddedAgent:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _start(
    listener_fd: int, environ: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """The child, which inherits the listening socket, and its standard input, unbuffered."""
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
