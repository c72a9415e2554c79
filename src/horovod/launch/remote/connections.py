"""The launcher's connections with other hosts: a child with ssh in it, or TCP to an embedded agent.

The child is in a session of its own, so that Ctrl-C in the terminal does not end it before the
workers, and ssh asks for no password. Its standard input and output are for frames. The end of its
standard error, where ssh, login scripts and a broken agent complain, is kept for messages.

A TCP connection begins with a handshake and costs no process. It is not encrypted, but the job's
secret in the plan is sealed, and every frame is in a record with a code (``handshake.py``).
Everything happens in the launcher's loop, and nothing blocks.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from horovod.launch.model.host_plan import HostPlan
from horovod.launch.model.job_plan import EmbeddedAgentAddress
from horovod.launch.wire.frames import FrameWriter
from horovod.launch.wire.handshake import LauncherHandshake
from horovod.launch.workers.output import Feed, Output
from horovod.launch.workers.processes import Watchdog, describe_exit, signal_group, spawn
from horovod.rendezvous.base.handshake import ProtocolError
from horovod.rendezvous.base.records import RecordError, Records

_READ_BYTES = 256 * 1024  # from a socket
_KEPT_BYTES = 8 * 1024
_KEPT_LINES = 20


@dataclass(eq=False, repr=False)
class AgentConnection:
    """A connection with an agent; ``on_data`` gets what the agent sends, piece by piece.

    ``writer`` sends frames; it is None without a connection. ``pid`` is 0 without a process.
    ``exit_code`` is None while it goes on, and also if it could not be started.
    """

    _selector: selectors.BaseSelector
    _on_data: Callable[[bytes], None]
    pid = 0

    def __post_init__(self) -> None:
        self.exit_code: int | None = None
        self.writer: FrameWriter | None = None
        self._writer_fd = -1

    def _open_writer(self, fd: int, sealed: Callable[[bytes], bytes] = bytes) -> None:
        """Send frames to ``fd``, which belongs to the connection then."""
        self._writer_fd = fd
        self.writer = FrameWriter(fd, self._selector, sealed)

    def _close_writer(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None
            os.close(self._writer_fd)


@dataclass(eq=False, repr=False)
class SshChild(AgentConnection):
    """Runs ``command``, whose standard input and output lead to the agent."""

    command: tuple[str, ...]
    _watchdog: Watchdog

    def __post_init__(self) -> None:
        super().__post_init__()
        self._output = Output(self._selector)
        self._errors = b""

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not been reaped."""
        return self.pid > 0 and self.exit_code is None

    @property
    def how_it_ended(self) -> str:
        """``ssh exited with code 255``."""
        return f"{os.path.basename(self.command[0])} {describe_exit(self.exit_code or 0)}"

    @property
    def last_lines(self) -> str:
        """The end of its standard error."""
        lines = self._errors.decode(errors="backslashreplace").splitlines()
        return "\n".join(line.rstrip() for line in lines[-_KEPT_LINES:] if line.strip())

    def sealed(self, plan: HostPlan) -> HostPlan:
        """The plan as it can be sent: ssh encrypts all of it."""
        return plan

    def start(self, environ: Mapping[str, str]) -> None:
        """Start it. Raises OSError; nothing was started then."""
        reader, writer = os.pipe()
        self._open_writer(writer)
        try:
            pipes = spawn(self.command, environ, inherits_stdin=True, descriptors={0: reader})
        except OSError:
            self.hang_up()
            raise
        finally:
            os.close(reader)
        self._watchdog.add(pipes.pid)
        self.pid = pipes.pid
        self._output.forward(pipes.stdout_fd, Feed(self._on_data))
        self._output.forward(pipes.stderr_fd, Feed(self._keep))

    def note_exit(self, exit_code: int) -> None:
        """The child was reaped; read what is left in its pipes."""
        self._watchdog.drop(self.pid)
        self.exit_code = exit_code
        self._output.drain()
        self.hang_up()

    def hang_up(self) -> None:
        """Close its standard input. An agent at its end then ends its workers and itself."""
        self._close_writer()

    def abort(self) -> None:
        """End it and read no more."""
        self.hang_up()
        self._output.abandon()
        if self.is_running:
            signal_group(self.pid, signal.SIGTERM)

    def close(self, deadline: float) -> None:
        """Hang up and reap it; what is left at ``deadline`` is killed. May be repeated."""
        self.hang_up()
        self._output.abandon()
        if self.is_running:
            _wait_for_exit(self.pid, deadline)
            signal_group(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.exit_code = 0
            self._watchdog.drop(self.pid)

    def _keep(self, data: bytes) -> None:
        self._errors = (self._errors + data)[-_KEPT_BYTES:]


def _wait_for_exit(pid: int, deadline: float) -> None:
    """Return once the child can be reaped, or at the deadline."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, AttributeError):  # an old kernel: do not wait
        return
    try:
        select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        os.close(pidfd)


# A node that disappears silently counts as lost after two minutes, as with ssh. Linux has these.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 8}


@dataclass(eq=False, repr=False)
class EmbeddedAgentLink(AgentConnection):
    """TCP. ``on_end`` is called when the other side or the network has ended it.

    An ``exit_code`` of 1 says that the connection was lost.
    ``may_retry``: it was cut before both sides had proved themselves, by another host on the way or
    by an agent with too many unauthenticated peers.
    """

    _address: EmbeddedAgentAddress
    _on_end: Callable[[], None]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.may_retry = False
        self.how_it_ended = ""
        self.last_lines = ""
        self._handshake = LauncherHandshake(self._address.secret)
        self._records: Records | None = None  # after the handshake
        self._socket: socket.socket | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a connection, or an attempt at one."""
        return self._socket is not None

    def start(self, environ: Mapping[str, str]) -> None:
        """Begin to connect. Raises OSError."""
        family = socket.AF_INET6 if ":" in self._address.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        _keep_alive(self._socket)
        self._socket.connect_ex((self._address.host, self._address.port))
        self._selector.register(self._socket, selectors.EVENT_WRITE, self._connected)

    def sealed(self, plan: HostPlan) -> HostPlan:
        """The plan as it can be sent: the job's secret is sealed."""
        return replace(plan, secret=self._handshake.sealed(plan.secret))

    def note_exit(self, exit_code: int) -> None:
        """There is no process."""

    def hang_up(self) -> None:
        """Close the sending side. The agent then ends its workers and itself."""
        self._close_writer()
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:  # it has ended, or was never connected
                self.abort()

    def close(self, deadline: float) -> None:
        """See ``abort``: there is nothing to wait for."""
        self.abort()

    def _connected(self) -> None:
        connected = self._socket
        assert connected is not None
        if error := connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(f"it cannot be reached: {os.strerror(error)}")
            return
        # The loop reads only when there is data, and writes piece by piece.
        connected.setblocking(True)
        self._selector.modify(connected, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        if self._socket is None:  # dropped in this turn of the loop
            return
        try:
            data = self._socket.recv(_READ_BYTES)
            if data and self._records is None:
                data = self._shake_hands(data)
                if not data:
                    return
        except ProtocolError as error:
            self._end(str(error))
            return
        except OSError as error:
            self.may_retry = not self._handshake.is_over
            self._end(str(error))
            return
        if data:
            self._hear(data)
        else:
            self.may_retry = not self._handshake.is_over
            self._end("its agent was ended, or the process that had it has ended")

    def _hear(self, data: bytes) -> None:
        assert self._records is not None
        try:
            for piece in self._records.opened(data):
                self._on_data(piece)
                if self._socket is None:  # dropped by the callback
                    return
        except RecordError as error:
            self._end(f"the data of its agent was altered: {error}")

    def _shake_hands(self, data: bytes) -> bytes:
        """Answer the handshake. Returns the bytes after it. Raises OSError."""
        assert self._socket is not None
        self._socket.sendall(self._handshake.feed(data))  # so few bytes always fit
        if self._handshake.is_over:
            self._records = self._handshake.records()
            # A descriptor of its own, for the selector.
            self._open_writer(os.dup(self._socket.fileno()), self._records.sealed)
        return self._handshake.rest

    def _end(self, problem: str) -> None:
        self.how_it_ended, self.exit_code = problem, 1
        self.abort()
        self._on_end()

    def abort(self) -> None:
        """End it and read no more."""
        self._close_writer()
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None


def _keep_alive(connected: socket.socket) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
