"""An embedded agent: an agent that another engine, such as Spark or Ray, runs in its processes.

Where ssh leads to other machines, the launcher starts agents by it. Where an engine has placed
processes, each of them starts an *embedded agent*: a child that listens at one address, accepts the
launcher that knows the job's secret, and is its agent. When the engine's process ends, for whatever
reason, the agent and its workers end.

The child listens with a socket that it inherits. A peer has to prove that it knows the job's
secret; unauthenticated peers get no data. The first peer with a proof is the launcher, and the only
one.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from subprocess import PIPE, Popen, TimeoutExpired
from typing import NoReturn

from horovod.launch.model.host_plan import HostPlan
from horovod.launch.remote.agent import Agent, forget_signal_settings
from horovod.launch.wire.handshake import PROTOCOL, AgentHandshake
from horovod.launch.workers.processes import take_stdin
from horovod.launch.workers.python_command import python_command
from horovod.launch.workers.wakeups import Wakeups
from horovod.rendezvous.base.admission import (
    UnauthenticatedPeers,
    accept_some,
    most_unauthenticated,
)
from horovod.rendezvous.base.handshake import ProtocolError

_END_S = 15.0  # two graces of the agent's, and its own end


@dataclass(frozen=True)
class EmbeddedAgentOrders:
    """The orders in JSON, the first line of standard input. The child ends when that closes.

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
            words = python_command(sys.executable, "embedded.embedded_agent")
            fd = listener.fileno()
            self._child = Popen(
                words, bufsize=0, stdin=PIPE, env=environ, pass_fds=(fd,), start_new_session=True
            )
            assert self._child.stdin is not None
            self._lifeline = self._child.stdin
            variables = dict(environment or {})
            orders = EmbeddedAgentOrders(fd, secret.hex(), variables, ends_with_failure, patience_s)
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
        except TimeoutExpired:
            self._child.kill()
            self._child.wait()


# The child.

_TURNS = 8
_MOST_GREETING_BYTES = 256


def main() -> NoReturn:
    """Serve the launcher that comes until it is done, or the engine's process has ended."""
    forget_signal_settings()
    orders = EmbeddedAgentOrders(**json.loads(_first_line()))
    lifeline = take_stdin()  # workers must not read it
    os.set_inheritable(orders.listener_fd, False)
    with (
        socket.socket(fileno=orders.listener_fd) as listener,
        Wakeups() as wakeups,
        selectors.DefaultSelector() as selector,
    ):
        agent = _EmbeddedAgentProcess(selector, wakeups, orders, listener, lifeline)
        agent.serve(orders.patience_s)
        sys.exit(1 if agent.has_failed or agent.has_given_up else 0)


def _first_line() -> bytes:
    """The first line of standard input, and no byte more: the loop waits for its end."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        line += byte
    return line


@dataclass(eq=False, repr=False)
class _EmbeddedAgentProcess(Agent):
    _orders: EmbeddedAgentOrders
    _listener: socket.socket
    _lifeline: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._peers = UnauthenticatedPeers[socket.socket](most_unauthenticated())
        self._handshakes: dict[socket.socket, AgentHandshake] = {}
        self._handshake: AgentHandshake | None = None  # the launcher's
        self.has_failed = False  # a worker
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._lifeline, selectors.EVENT_READ, self._read_lifeline)

    def say(self, text: str) -> None:
        """See ``Agent``."""
        super().say(f"horovod: {text}")

    # Peers.

    def _accept(self) -> None:
        if self._handshake is not None:  # the launcher has connected in this turn of the loop
            return
        try:
            # Few at once, so that each of them has many turns of the loop to prove itself.
            for peer, address in accept_some(self._listener, self._peers.most // _TURNS):
                if self._peers.is_full:
                    self._make_room()
                self._add(peer, address[0])
        except OSError:
            self._make_room()

    def _add(self, peer: socket.socket, address: str) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake = AgentHandshake(bytes.fromhex(self._orders.secret))
        self._peers.add(peer, address)
        self._handshakes[peer] = handshake
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(peer))
        self._send(peer, handshake.opening)

    def _make_room(self) -> None:
        """Drop a peer. A launcher that is dropped connects again."""
        if (peer := self._peers.first_to_go()) is not None:
            self._drop(peer)

    def _read(self, peer: socket.socket) -> None:
        handshake = self._handshakes.get(peer)
        if handshake is None:  # dropped in this turn of the loop
            return
        try:
            data = peer.recv(_MOST_GREETING_BYTES)
            answer = handshake.feed(data)
        except ProtocolError:
            self._send(peer, PROTOCOL.refusal)
            data = b""
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        self._send(peer, answer)
        if handshake.is_over:
            self._handshake = handshake
            self._serve(peer)

    def _send(self, peer: socket.socket, data: bytes) -> None:
        """Send a short message, which always fits into an empty socket."""
        with contextlib.suppress(OSError):
            peer.sendall(data)

    def _drop(self, peer: socket.socket) -> None:
        self._peers.remove(peer)
        del self._handshakes[peer]
        self._selector.unregister(peer)
        peer.close()

    def _serve(self, launcher: socket.socket) -> None:
        """Serve the launcher, and accept no other peer."""
        orders_fd, reports_fd = os.dup(launcher.fileno()), os.dup(launcher.fileno())
        launcher.setblocking(True)
        for peer in list(self._handshakes):
            self._drop(peer)
        self._selector.unregister(self._listener)
        self._listener.close()
        assert self._handshake is not None
        self.attach(orders_fd, reports_fd, self._handshake.records())

    # The end.

    def _read_lifeline(self) -> None:
        if not os.read(self._lifeline, 1):
            self._selector.unregister(self._lifeline)
            self.leave("the process that has this agent has ended it")

    def note_exit(self, exit_code: int) -> None:
        """See ``Agent``."""
        if exit_code != 0 and not self.is_ending:
            self.has_failed = True
            if self._orders.ends_with_failure:
                self.give_up("a worker has failed")

    def adapted(self, plan: HostPlan) -> HostPlan:
        """Opened. Without a program it is this Python. This process's variables stay."""
        assert self._handshake is not None
        words = (plan.argv[0] or sys.executable, *plan.argv[1:])
        environment = {**os.environ, **plan.environment, **self._orders.environment}
        secret = self._handshake.sealed(plan.secret)
        return replace(plan, argv=words, environment=environment, secret=secret)
