"""A man in the middle: a host that every TCP connection between two other hosts passes.

It has a cable to each of the two, which have no other path. It takes each connection over (the
redirect of nftables) and opens another one to the real target. The clear text of the handshakes
tells it which connection is which. One thread in that host's network, one selector, bounded
buffers; it ends with ``close`` or with its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum, IntEnum, auto
from pathlib import Path
from types import TracebackType

from network import Host, Interface
from tampering import End, Pause, Piece, Tamper

from horovod.rendezvous.links import handshake as link_handshake
from horovod.rendezvous.links.plan import Purpose
from horovod.rendezvous.store import wire

__all__ = [
    "CABLING",
    "HANDSHAKE_BYTES",
    "Connection",
    "Kind",
    "ManInTheMiddle",
    "Speaker",
]

# Hosts 0 and 1 see each other through host 2 only.
CABLING = (
    (Interface("eth0", ("10.91.1.1/24",), "left"),),
    (Interface("eth0", ("10.91.2.1/24",), "right"),),
    (Interface("eth0", ("10.91.1.9/24",), "left"), Interface("eth1", ("10.91.2.9/24",), "right")),
)
_RULES = """
table ip middle {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    meta l4proto tcp redirect to :{port}
  }}
}}
"""
_CLONE_NEWNET = 0x40000000
_SO_ORIGINAL_DST = 80
_ADDRESS = struct.Struct("!2xH4s8x")  # sockaddr_in
_READ_BYTES = 64 * 1024
_MOST_HELD_BYTES = 1024 * 1024
_END_TIMEOUT_S = 120.0
_LINK = link_handshake.PROTOCOL
# The claims in a hello. They end with a digest that is the same for all links of a world.
_CLAIMS_AT = _LINK.challenge_bytes
_CLAIMS_END = _CLAIMS_AT + _LINK.statement_bytes
_CONTEXT_BYTES = 32
_VERSION_BYTES = 1  # at the end of a magic


class Speaker(IntEnum):
    """The side that sent the bytes."""

    DIALER = 0
    LISTENER = 1


class Kind(Enum):
    """What a connection is for."""

    UNKNOWN = auto()  # or not known yet
    STORE = auto()
    LINK = auto()  # not known yet which
    CONTROL = auto()
    DATA = auto()
    NEWS = auto()


# A connection that is dialled again has a TAKE more in each direction.
_LINK_BYTES = {
    Speaker.DIALER: _LINK.hello_bytes,
    Speaker.LISTENER: _LINK.challenge_bytes + _LINK.reply_bytes,
}
_STORE_BYTES = {
    Speaker.DIALER: wire.PROTOCOL.hello_bytes,
    Speaker.LISTENER: wire.PROTOCOL.challenge_bytes + wire.PROTOCOL.reply_bytes,
}
HANDSHAKE_BYTES = {
    Kind.STORE: _STORE_BYTES,
    **dict.fromkeys((Kind.LINK, Kind.CONTROL, Kind.DATA, Kind.NEWS), _LINK_BYTES),
}
_LINK_KINDS = {
    Purpose.CONTROL: Kind.CONTROL,
    Purpose.DATA: Kind.DATA,
    Purpose.NEWS: Kind.NEWS,
}

# What to do with this direction of this connection, if anything.
Plan = Callable[["Connection", Speaker], Tamper | None]


class _Flow:
    """One direction: from one socket, through the tampers, to the other."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.head = bytearray()  # the first bytes
        self.came_bytes = 0
        self.first: Tamper | None = None  # in the handshake
        self.second: Tamper | None = None  # after it
        self.pieces: deque[Piece] = deque()
        self.resumes_at = 0.0
        self.has_ended = False  # at its source
        self.is_closed = False  # at its sink

    @property
    def wants_to_read(self) -> bool:
        held = sum(len(piece) for piece in self.pieces if isinstance(piece, bytes))
        return not self.has_ended and held < _MOST_HELD_BYTES

    @property
    def wants_to_write(self) -> bool:
        return bool(self.pieces) and self.resumes_at <= time.monotonic()


class Connection:
    """A connection through the middle. ``world`` counts the worlds to which links belong."""

    def __init__(self, index: int, dialer: socket.socket, listener: socket.socket) -> None:
        self.index = index
        self.kind = Kind.UNKNOWN
        self.world = -1  # not known, or none
        self.is_connected = False
        self.sockets = {Speaker.DIALER: dialer, Speaker.LISTENER: listener}
        self.flows = {
            Speaker.DIALER: _Flow(dialer, listener),
            Speaker.LISTENER: _Flow(listener, dialer),
        }

    def sent_bytes(self, speaker: Speaker) -> int:
        """How many bytes this side has sent after its handshake."""
        return max(0, self.flows[speaker].came_bytes - HANDSHAKE_BYTES[self.kind][speaker])

    @property
    def was_struck(self) -> bool:
        """Whether something of it was changed."""
        tampers = [tamper for f in self.flows.values() for tamper in (f.first, f.second)]
        return any(tamper is not None and tamper.has_struck for tamper in tampers)

    def recognise(self) -> Kind:
        """What it is for, as far as the bytes so far show."""
        magic = bytes(self.flows[Speaker.LISTENER].head[: len(_LINK.magic)])
        if magic[:-_VERSION_BYTES] == wire.PROTOCOL.magic[:-_VERSION_BYTES]:
            return Kind.STORE
        if magic[:-_VERSION_BYTES] != _LINK.magic[:-_VERSION_BYTES]:
            return Kind.UNKNOWN
        hello = self.flows[Speaker.DIALER].head
        return _LINK_KINDS[Purpose(hello[_CLAIMS_AT])] if len(hello) >= _CLAIMS_END else Kind.LINK

    @property
    def context(self) -> bytes:
        """The context in the dialer's claims, once the kind is known."""
        return bytes(self.flows[Speaker.DIALER].head[_CLAIMS_END - _CONTEXT_BYTES : _CLAIMS_END])


class ManInTheMiddle:
    """Takes over every TCP connection through ``host`` until ``close``.

    ``at_start`` is called once for each direction of a new connection, for its handshake, and
    ``afterwards`` at the first byte after it. Both run on this object's thread and may be set at
    any time. ``connections`` has all connections so far.
    """

    def __init__(self, ends: list[Host], host: Host) -> None:
        self.at_start: Plan = lambda connection, speaker: None
        self.afterwards: Plan = lambda connection, speaker: None
        self.connections: list[Connection] = []
        self._open: set[Connection] = set()
        self._worlds: dict[bytes, int] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._failure: BaseException | None = None
        self._is_ready = threading.Event()
        self._port = 0
        self._thread = threading.Thread(
            target=self._run, args=(host.network_namespace,), name="middle", daemon=True
        )
        self._thread.start()
        self._is_ready.wait(_END_TIMEOUT_S)
        self._check()
        host.in_network(["nft", "-f", "-"], input=_RULES.format(port=self._port))
        for end, near in zip(ends, host.addresses, strict=True):
            end.in_network(["ip", "route", "add", "default", "via", near])

    def of_kind(self, *kinds: Kind) -> list[Connection]:
        """The connections of these kinds, in the order in which they were made."""
        return [connection for connection in self.connections if connection.kind in kinds]

    def close(self) -> None:
        """End every connection and the thread; raises the error of the thread."""
        self._wake_writer.close()
        self._thread.join(_END_TIMEOUT_S)
        assert not self._thread.is_alive()
        self._check()

    def __enter__(self) -> ManInTheMiddle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError("the man in the middle failed") from self._failure

    def _run(self, namespace: Path) -> None:
        with self._selector, self._wake_reader:
            try:
                _enter(namespace)  # this thread alone
                with _listener() as listener:
                    self._port = listener.getsockname()[1]
                    self._selector.register(listener, selectors.EVENT_READ, self._accept)
                    self._selector.register(self._wake_reader, selectors.EVENT_READ)
                    self._is_ready.set()
                    self._serve()
            except BaseException as failure:
                self._failure = failure
            finally:
                self._is_ready.set()
                for connection in list(self._open):
                    self._reset(connection)

    def _serve(self) -> None:
        while True:
            for key, events in self._selector.select(self._seconds_to_resume()):
                if key.fileobj is self._wake_reader:
                    return
                if isinstance(key.data, Connection):
                    self._advance(key.data, events)
                else:
                    self._accept(key.fileobj)  # type: ignore[arg-type]
            for connection in list(self._open):
                self._pump(connection)

    def _seconds_to_resume(self) -> float | None:
        flows = [flow for connection in self._open for flow in connection.flows.values()]
        waiting = [flow.resumes_at for flow in flows if flow.pieces]
        now = time.monotonic()
        later = [moment - now for moment in waiting if moment > now]
        return min(later) if later else None

    def _accept(self, listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        raw = accepted.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, _ADDRESS.size)
        port, packed = _ADDRESS.unpack(raw)
        meant = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        for made in (accepted, meant):
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(len(self.connections), accepted, meant)
        self.connections.append(connection)
        self._open.add(connection)
        meant.connect_ex((socket.inet_ntoa(packed), port))
        self._selector.register(meant, selectors.EVENT_WRITE, connection)
        for speaker, flow in connection.flows.items():
            flow.first = self.at_start(connection, speaker)

    def _advance(self, connection: Connection, events: int) -> None:
        if connection not in self._open:
            return  # reset since the selector returned
        if not connection.is_connected:
            meant = connection.sockets[Speaker.LISTENER]
            if meant.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
                self._reset(connection)
                return
            connection.is_connected = True
            return
        for speaker in Speaker:
            if connection.flows[speaker].wants_to_read:
                self._receive(connection, speaker)

    def _receive(self, connection: Connection, speaker: Speaker) -> None:
        flow = connection.flows[speaker]
        try:
            data = flow.source.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            flow.has_ended = True
            flow.pieces.append(End.RESET)
            return
        if not data:
            flow.has_ended = True
            flow.pieces.append(End.CLOSE)
            return
        self._note(connection, speaker, data)
        flow.pieces += self._tampered(connection, speaker, data)

    def _note(self, connection: Connection, speaker: Speaker, data: bytes) -> None:
        flow = connection.flows[speaker]
        flow.came_bytes += len(data)
        flow.head += data[: _CLAIMS_END - len(flow.head)]
        if connection.kind in (Kind.UNKNOWN, Kind.LINK):
            connection.kind = connection.recognise()
            if connection.kind in _LINK_KINDS.values():
                connection.world = self._worlds.setdefault(connection.context, len(self._worlds))

    def _tampered(self, connection: Connection, speaker: Speaker, data: bytes) -> list[Piece]:
        flow = connection.flows[speaker]
        limit = HANDSHAKE_BYTES.get(connection.kind, {}).get(speaker)
        said_before = flow.came_bytes - len(data)
        split = len(data) if limit is None else max(0, limit - said_before)
        pieces: list[Piece] = []
        if early := data[:split]:
            pieces += flow.first.feed(early) if flow.first else (early,)
        if later := data[split:]:
            if limit is not None and said_before <= limit:
                flow.second = self.afterwards(connection, speaker)
            pieces += flow.second.feed(later) if flow.second else (later,)
        return pieces

    def _pump(self, connection: Connection) -> None:
        if not connection.is_connected:
            return
        for flow in connection.flows.values():
            while flow.wants_to_write and self._pass_on(connection, flow):
                pass
            if connection not in self._open:
                return
        if all(flow.is_closed for flow in connection.flows.values()):
            self._close(connection)
            return
        for speaker, made in connection.sockets.items():
            self._watch(connection, made, speaker)

    def _pass_on(self, connection: Connection, flow: _Flow) -> bool:
        """Handle the next piece; False if it must wait."""
        piece = flow.pieces.popleft()
        if isinstance(piece, Pause):
            flow.resumes_at = time.monotonic() + piece.seconds
        elif piece is End.RESET:
            self._reset(connection)
            return False
        elif piece is End.CLOSE:
            flow.has_ended = flow.is_closed = True
            flow.pieces.clear()
            with contextlib.suppress(OSError):
                flow.sink.shutdown(socket.SHUT_WR)
        elif not self._send(flow, piece):
            return False
        return True

    def _send(self, flow: _Flow, data: bytes) -> bool:
        try:
            sent = flow.sink.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            flow.pieces.appendleft(End.RESET)
            return True
        if sent < len(data):
            flow.pieces.appendleft(data[sent:])
        return sent == len(data)

    def _watch(self, connection: Connection, made: socket.socket, speaker: Speaker) -> None:
        events = selectors.EVENT_READ if connection.flows[speaker].wants_to_read else 0
        other = connection.flows[Speaker(1 - speaker)]
        events |= selectors.EVENT_WRITE if other.wants_to_write else 0
        registered = self._selector.get_map().get(made)
        if registered is not None and registered.events == events:
            return
        if registered is not None:
            self._selector.unregister(made)
        if events:
            self._selector.register(made, events, connection)

    def _reset(self, connection: Connection) -> None:
        for made in connection.sockets.values():
            if made.fileno() >= 0:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._open.discard(connection)
        for made in connection.sockets.values():
            if made.fileno() >= 0 and made in self._selector.get_map():
                self._selector.unregister(made)
            made.close()


def _enter(namespace: Path) -> None:
    """Move this thread into another network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(namespace, os.O_RDONLY)
    try:
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    finally:
        os.close(fd)


def _listener() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("0.0.0.0", 0))
    listener.listen(1024)
    return listener
