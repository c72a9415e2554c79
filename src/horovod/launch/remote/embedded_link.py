"""The launcher's way to a guest: a connection of its own, greeted before frames go over it.

For a ``RemoteCrew`` it is what a child with ssh in it is; it costs no process. Everything happens
in the launcher's loop, and nothing blocks. The connection is not encrypted. But the job's secret in
the plan is sealed, and every frame goes in a record with a code (``records.py``).
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace

from horovod.launch.model.host_plan import HostPlan
from horovod.launch.model.job_plan import EmbeddedAgentAddress
from horovod.launch.wire.channel import FrameWriter
from horovod.launch.wire.handshake import LauncherHandshake, ProtocolError
from horovod.launch.wire.records import RecordError, Records

__all__ = ["EmbeddedAgentLink"]

_READ_BYTES = 256 * 1024
# A node that is gone without a word counts as lost after two minutes, as with ssh.
_KEEPALIVE_S, _KEEPALIVE_COUNT = 15, 8


class EmbeddedAgentLink:
    """See ``SshChild``. ``on_end`` is called when it has ended and nobody here has ended it.

    There is no process: ``pid`` is 0, and an ``exit_code`` of 1 says that the connection was lost.
    ``may_come_again``: it was cut before both sides had proved themselves, by somebody on the way
    or by a guest that too many strangers had come to.
    """

    pid = 0

    def __init__(
        self,
        address: EmbeddedAgentAddress,
        selector: selectors.BaseSelector,
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self.exit_code: int | None = None
        self.may_come_again = False
        self.how_it_ended = ""
        self.last_lines = ""
        self._address = address
        self._selector = selector
        self._on_data = on_data
        self._on_end = on_end
        self._greeting = LauncherHandshake(address.secret)
        self._records: Records | None = None  # once greeted
        self._socket: socket.socket | None = None
        self._writer: FrameWriter | None = None
        self._writer_fd = -1

    @property
    def is_running(self) -> bool:
        """Whether there is a connection, or an attempt at one."""
        return self._socket is not None

    @property
    def writer(self) -> FrameWriter | None:
        """Where frames go; None before the greeting is over, and after the end."""
        return self._writer

    def start(self, environ: Mapping[str, str]) -> None:
        """Begin to connect. Raises OSError."""
        family = socket.AF_INET6 if ":" in self._address.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        _keep_alive(self._socket)
        self._socket.connect_ex((self._address.host, self._address.port))
        self._selector.register(self._socket, selectors.EVENT_WRITE, self._connected)

    def sealed(self, plan: HostPlan) -> HostPlan:
        """What of it goes over the network, where ssh would hide all: not the job's secret."""
        return replace(plan, secret=self._greeting.sealed(plan.secret))

    def note_exit(self, exit_code: int) -> None:
        """See ``pid``: nobody calls it."""

    def hang_up(self) -> None:
        """Say that nothing more comes; the guest then ends its workers and itself."""
        self._drop_writer()
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:  # it has ended, or has never begun
                self._drop()

    def abort(self) -> None:
        """End it, and listen no more."""
        self._drop()

    def close(self, deadline: float) -> None:
        """The same; there is nothing to wait for."""
        self._drop()

    def _connected(self) -> None:
        connected = self._socket
        assert connected is not None
        error = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._end(f"it cannot be reached: {os.strerror(error)}")
            return
        # It is read when there is something, and written piece by piece.
        connected.setblocking(True)
        self._selector.modify(connected, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        if self._socket is None:  # dropped in this turn of the loop
            return
        try:
            data = self._socket.recv(_READ_BYTES)
            if data and self._records is None:
                data = self._greet(data)
                if not data:
                    return
        except ProtocolError as error:
            self._end(str(error))
            return
        except OSError as error:
            self.may_come_again = not self._greeting.is_over
            self._end(str(error))
            return
        if data:
            self._hear(data)
        else:
            self.may_come_again = not self._greeting.is_over
            self._end("its guest was ended, or the process that had it has ended")

    def _hear(self, data: bytes) -> None:
        assert self._records is not None
        try:
            for piece in self._records.opened(data):
                self._on_data(piece)
                if self._socket is None:  # dropped because of what it has said
                    return
        except RecordError as error:
            self._end(f"what its guest has sent did not arrive as it was: {error}")

    def _greet(self, data: bytes) -> bytes:
        """What comes behind the greeting. Raises OSError."""
        assert self._socket is not None
        self._socket.sendall(self._greeting.feed(data))  # so little always fits
        if self._greeting.is_over:
            self._writer_fd = os.dup(self._socket.fileno())  # apart, for the selector
            self._records = self._greeting.records()
            self._writer = FrameWriter(self._writer_fd, self._selector, self._records.sealed)
        return self._greeting.rest

    def _end(self, problem: str) -> None:
        self.how_it_ended, self.exit_code = problem, 1
        self._drop()
        self._on_end()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            os.close(self._writer_fd)

    def _drop(self) -> None:
        self._drop_writer()
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None


def _keep_alive(connected: socket.socket) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, name):  # Linux
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), _KEEPALIVE_S)
    if hasattr(socket, "TCP_KEEPCNT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_COUNT)
