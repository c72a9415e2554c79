"""Makes many TCP connections at once on the calling thread, with one selector.

The handshake of a connection is a *talk*: a generator that yields how many bytes it needs next and
is sent exactly these. Nothing beyond them is read, so later bytes are left to the owner of the
socket. A talk ends by returning (the connection is made) or by raising ``ProtocolError``.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Generator
from typing import Any

from horovod.rendezvous.base.deadlines import Deadline, Timers
from horovod.rendezvous.base.handshake import ProtocolError
from horovod.rendezvous.base.interfaces import Route

Talk = Generator[int, bytes, None]


class Stream:
    """One connection. ``on_end`` is called when its talk ends, with None or the reason of failure.

    After a success the socket belongs to the owner of ``on_end``.
    """

    def __init__(
        self,
        connected: socket.socket,
        deadline: Deadline,
        talk: Callable[[Stream], Talk],
        on_end: Callable[[Stream, str | None], None],
    ) -> None:
        self.socket = connected
        self.deadline = deadline
        self._talk = talk(self)
        self._on_end = on_end
        self._received = b""
        self._wanted = 0
        self.is_connected = False  # whether the other end has accepted
        self.was_closed_by_peer = False
        self.is_late = False  # whether its deadline has ended it

    def send(self, data: bytes) -> None:
        """Send a message of the talk. Messages are short: if one does not fit, the peer is bad."""
        if self.socket.send(data) != len(data):
            raise ProtocolError("it does not read its messages")


class Connector:
    """All connections that are being made, and the sockets that listen for more."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, Stream] = {}
        self._timers: Timers[Stream] = Timers()

    def listen(self, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        """Call ``on_ready`` when connections wait at ``listener``."""
        self._selector.register(listener, selectors.EVENT_READ, on_ready)

    def ignore(self, listener: socket.socket) -> None:
        """Watch a listener no more."""
        self._selector.unregister(listener)

    def add(self, stream: Stream) -> None:
        """Add an accepted connection; its talk begins at once."""
        self._register(stream, selectors.EVENT_READ)
        self._guarded(stream, self._begin)

    def connect(self, stream: Stream, route: Route) -> None:
        """Connect; the talk begins when the other end has accepted."""
        error = stream.socket.connect_ex(route.target)
        if error in (0, errno.EINPROGRESS):
            self._register(stream, selectors.EVENT_WRITE)
        else:
            self._end(stream, os.strerror(error))

    def drop(self, stream: Stream) -> None:
        """Close a connection without a call of ``on_end``."""
        if self._forget(stream):
            stream.socket.close()

    def step(self, wait_s: float) -> None:
        """Advance all connections that can go on; wait up to ``wait_s`` for the first event."""
        first = self._timers.first()
        if first is not None:
            wait_s = min(wait_s, max(0.0, first - time.monotonic()))
        events = [key.data for key, _ in self._selector.select(wait_s)]
        # Open connections first: a new one may have to take the place of one of them.
        for stream in [data for data in events if isinstance(data, Stream)]:
            self._advance(stream)
        for on_ready in [data for data in events if not isinstance(data, Stream)]:
            on_ready()
        while (late := self._timers.take(time.monotonic())) is not None:
            late.is_late = True
            what = "answer" if late.is_connected else "connection"
            self._end(late, f"no {what} within {late.deadline.timeout_s:g} s")

    def close(self) -> None:
        """Drop all connections and forget all listeners."""
        for stream in list(self._streams.values()):
            self.drop(stream)
        self._selector.close()

    def _register(self, stream: Stream, events: int) -> None:
        fd = stream.socket.fileno()
        self._streams[fd] = stream
        self._selector.register(fd, events, stream)
        self._timers.set(stream, stream.deadline.at)

    def _forget(self, stream: Stream) -> bool:
        fd = stream.socket.fileno()
        if self._streams.get(fd) is not stream:
            return False
        del self._streams[fd]
        self._timers.set(stream, None)
        self._selector.unregister(fd)
        return True

    def _advance(self, stream: Stream) -> None:
        if self._streams.get(stream.socket.fileno()) is not stream:
            return  # dropped since the selector returned
        self._guarded(stream, self._read if stream.is_connected else self._begin)

    def _begin(self, stream: Stream) -> None:
        error = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        stream.is_connected = True
        self._selector.modify(stream.socket, selectors.EVENT_READ, stream)
        stream._wanted = next(stream._talk)

    def _read(self, stream: Stream) -> None:
        data = stream.socket.recv(stream._wanted - len(stream._received))
        if not data:
            stream.was_closed_by_peer = True
            raise ProtocolError("it closed the connection in the middle of the handshake")
        stream._received += data
        if len(stream._received) == stream._wanted:
            whole, stream._received = stream._received, b""
            stream._wanted = stream._talk.send(whole)

    def _guarded(self, stream: Stream, action: Callable[[Stream], Any]) -> None:
        try:
            action(stream)
        except StopIteration:
            self._end(stream, None)
        except BlockingIOError:
            pass
        except OSError as error:
            stream.was_closed_by_peer = isinstance(error, (ConnectionResetError, BrokenPipeError))
            self._end(stream, error.strerror or str(error))
        except ProtocolError as error:
            self._end(stream, str(error))

    def _end(self, stream: Stream, reason: str | None) -> None:
        self._forget(stream)
        if reason is not None:
            stream.socket.close()
        stream._on_end(stream, reason)
