"""The store inside our launcher: one thread, one selector, no work while nobody asks.

Bound to the loopback interface or to the addresses given, never to all. A connection proves that
it knows the job's secret before anything it sends is interpreted; one that is slow, wrong, too
large or broken off in the middle is dropped and reported once per address, and the others never
notice. What strangers and clients can make it keep is bounded. ``get`` of an absent key is parked
here until it is set.
"""

from __future__ import annotations

import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from horovod.rendezvous import wire
from horovod.rendezvous.authentication import NONCE_BYTES, is_proof, new_nonce, prove
from horovod.rendezvous.shelf import FullError, Shelf
from horovod.rendezvous.store import address_text
from horovod.rendezvous.tcp import shorten_pauses

__all__ = ["StoreServer"]

_MAX_REPORTS = 20
_LOOPBACK = (("127.0.0.1", 0),)


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"horovod: {text}\n")


@dataclass(eq=False)
class _Connection:
    """One client. ``deadline`` is set while it owes us bytes or does not take ours."""

    socket: socket.socket
    peer: str
    host: str
    nonce: bytes
    deadline: float | None
    is_authentic: bool = False
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    parked_key: bytes | None = None
    parked_until: float = 0.0


class _DropError(Exception):
    """The connection must go; the text says why."""


class StoreServer:
    """Serves ``StoreClient``s that know ``secret``, at ``addresses`` (port 0: the system chooses).

    From construction on, ``addresses`` are where; ``address`` is the first of them. ``start``
    begins to serve on a thread of its own, ``close`` ends that thread and every connection.
    ``io_timeout_s`` bounds the hello and each frame, not the silence between frames. ``report``
    gets a line for the first connection dropped of each address, ``on_set`` each key and value that
    a client has set, both on the server's thread.

    Raises:
        OSError: an address is not this machine's or is taken.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        addresses: Sequence[tuple[str, int]] = _LOOPBACK,
        io_timeout_s: float = 10.0,
        max_connections: int = 4096,
        report: Callable[[str], None] = _to_stderr,
        on_set: Callable[[str, bytes], None] = lambda key, value: None,
    ) -> None:
        self._secret = secret
        self._io_timeout_s = io_timeout_s
        self._max_connections = max_connections
        self._report = report
        self._on_set = on_set
        self._reported: set[str] = set()
        self._shelf = Shelf()
        self._orders: deque[Callable[[], None]] = deque()
        self._is_closing = False
        self._connections: set[_Connection] = set()
        self._listen_again_at: float | None = None
        self._listeners = _listen(addresses)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._watch_listeners()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="horovod-store", daemon=True)
        self.addresses = [_address_of(listener) for listener in self._listeners]
        self.address = self.addresses[0]

    def start(self) -> None:
        """Begin to serve; connections made since construction have waited in the backlog."""
        self._thread.start()

    def listen(self, addresses: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Listen at further addresses, and soon serve there; where that is. From any thread.

        Raises:
            OSError: as for construction.
        """
        listeners = _listen(addresses)

        def watch() -> None:
            self._listeners += listeners
            for listener in listeners:
                self._selector.register(listener, selectors.EVENT_READ, listener)

        self._order(watch)
        added = [_address_of(listener) for listener in listeners]
        self.addresses += added
        return added

    def set(self, key: str, value: bytes) -> None:
        """Keep ``value`` as if a client had set it; from any thread, done soon."""
        self._order(lambda: self._put(key.encode(), value))

    def abandon(self, scope: str, reason: str) -> None:
        """Drop all keys that begin with ``scope``; who waits for one, or will, gets ``reason``.

        From any thread, done soon.
        """
        self._order(lambda: self._abandon(scope.encode(), reason.encode(errors="replace")))

    def drop(self, scope: str) -> None:
        """Drop the values under keys that begin with ``scope``; from any thread, done soon."""
        self._order(lambda: self._shelf.drop(scope.encode()))

    def found(self, scope: str) -> dict[str, bytes]:
        """What is under keys that begin with ``scope``; from any thread while it serves.

        Blocks until what was set before has been kept; nothing if that takes too long.
        """
        values: dict[str, bytes] = {}
        is_read = threading.Event()

        def read() -> None:
            values.update(self._shelf.found(scope.encode()))
            is_read.set()

        self._order(read)
        return values if is_read.wait(2 * self._io_timeout_s) else {}

    def close(self) -> None:
        """Stop serving and drop every connection; blocks until the thread has ended."""
        self._is_closing = True
        if self._thread.is_alive():
            self._wake_writer.send(b"x")
            self._thread.join()
        for connection in self._connections:
            connection.socket.close()
        self._connections.clear()
        self._selector.close()
        for each in (*self._listeners, self._wake_reader, self._wake_writer):
            each.close()

    def __enter__(self) -> StoreServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            for key, events in self._selector.select(self._seconds_to_next_deadline()):
                if key.fileobj is self._wake_reader:
                    self._wake_reader.recv(4096)
                    if self._is_closing:
                        return
                    self._take_orders()
                if key.fileobj in self._listeners:
                    self._accept(key.data)
                elif key.data in self._connections:
                    self._advance(key.data, events)
            self._expire(time.monotonic())

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self._wake_writer.send(b"o")

    def _take_orders(self) -> None:
        while self._orders:
            try:
                self._orders.popleft()()
            except FullError as error:
                self._report(f"store: {error}")

    def _seconds_to_next_deadline(self) -> float | None:
        deadlines = [c.deadline for c in self._connections if c.deadline is not None]
        deadlines += [c.parked_until for c in self._connections if c.parked_key is not None]
        deadlines += [] if self._listen_again_at is None else [self._listen_again_at]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _expire(self, now: float) -> None:
        if self._listen_again_at is not None and self._listen_again_at <= now:
            self._listen_again_at = None
            self._watch_listeners()
        for connection in list(self._connections):
            if connection.deadline is not None and connection.deadline <= now:
                what = "whole message" if connection.is_authentic else "proof of the secret"
                self._drop(connection, f"no {what} within {self._io_timeout_s:g} s")
            elif connection.parked_key is not None and connection.parked_until <= now:
                connection.parked_key = None
                self._answer(connection, wire.Status.TIMEOUT)

    def _watch_listeners(self) -> None:
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ, listener)

    def _accept(self, listener: socket.socket) -> None:
        if len(self._connections) >= self._max_connections:
            self._make_room(f"{len(self._connections)} connections are open")
            return
        try:
            accepted, address = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._make_room(str(error))
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A client whose machine is gone must not be kept for ever.
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        deadline = time.monotonic() + self._io_timeout_s
        peer = address_text(address)
        connection = _Connection(accepted, peer, address[0], new_nonce(), deadline)
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        self._send(connection, wire.MAGIC + connection.nonce)

    def _make_room(self, reason: str) -> None:
        """Too many connections: those that have not proved anything go first, oldest first."""
        strangers = [c for c in self._connections if not c.is_authentic]
        if strangers:
            oldest = min(strangers, key=lambda c: c.deadline or 0.0)
            self._drop(oldest, f"no proof of the secret yet and {reason}")
        elif self._listen_again_at is None:
            self._report(f"store: no new connections for a second: {reason}")
            for listener in self._listeners:
                self._selector.unregister(listener)
            self._listen_again_at = time.monotonic() + 1.0

    def _advance(self, connection: _Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ:
                self._read(connection)
        except _DropError as reason:
            self._drop(connection, str(reason))
        except OSError as error:
            self._drop(connection, str(error))

    def _read(self, connection: _Connection) -> None:
        limit = wire.MAX_BODY_BYTES if connection.is_authentic else wire.HELLO_BYTES
        data = connection.socket.recv(limit)
        if not data:
            self._finish(connection)
            return
        if connection.parked_key is not None:
            raise _DropError("it asked again before it was answered")
        connection.received += data
        while self._take_message(connection):
            connection.deadline = None
        self._set_deadline(connection)

    def _finish(self, connection: _Connection) -> None:
        """End of stream: a goodbye between two frames, else worth a report."""
        if not connection.is_authentic:
            raise _DropError("it left without proving that it knows the job's secret")
        if connection.received:
            raise _DropError("it left in the middle of a message")
        self._forget(connection)

    def _take_message(self, connection: _Connection) -> bool:
        received = connection.received
        if not connection.is_authentic:
            if len(received) < wire.HELLO_BYTES:
                return False
            hello = bytes(received[: wire.HELLO_BYTES])
            del received[: wire.HELLO_BYTES]
            self._authenticate(connection, hello)
            return True
        if len(received) < wire.LENGTH.size:
            return False
        (body_bytes,) = wire.LENGTH.unpack_from(received)
        if body_bytes > wire.MAX_BODY_BYTES:
            raise _DropError(f"a message of {body_bytes} bytes, at most {wire.MAX_BODY_BYTES} fit")
        end = wire.LENGTH.size + body_bytes
        if len(received) < end:
            return False
        body = bytes(received[wire.LENGTH.size : end])
        del received[:end]
        self._handle(connection, body)
        return True

    def _authenticate(self, connection: _Connection, hello: bytes) -> None:
        if not hello.startswith(wire.MAGIC):
            raise _DropError("it does not speak this protocol")
        nonce_end = len(wire.MAGIC) + NONCE_BYTES
        theirs, proof = hello[len(wire.MAGIC) : nonce_end], hello[nonce_end:]
        if not is_proof(proof, self._secret, wire.CLIENT_ROLE, connection.nonce, theirs):
            raise _DropError("it does not know the job's secret")
        connection.is_authentic = True
        self._send(connection, prove(self._secret, wire.SERVER_ROLE, theirs, connection.nonce))

    def _handle(self, connection: _Connection, body: bytes) -> None:
        if connection.parked_key is not None or connection.unsent:
            raise _DropError("it asked again before it was answered")
        try:
            request = wire.decode_request(body)
        except ValueError as error:
            raise _DropError(str(error)) from None
        if (reason := self._shelf.reason_against(request.key)) is not None:
            self._answer(connection, wire.Status.ABANDONED, reason)
        elif request.operation == wire.Operation.SET:
            try:
                self._put(request.key, request.value)
            except FullError as error:
                raise _DropError(str(error)) from None
            # Before the client goes on, and perhaps ends.
            self._on_set(request.key.decode(errors="replace"), request.value)
            self._answer(connection, wire.Status.DONE)
        elif (value := self._shelf.get(request.key)) is not None:
            self._answer(connection, wire.Status.DONE, value)
        else:
            connection.parked_key = request.key
            connection.parked_until = time.monotonic() + request.timeout_ms / 1000

    def _put(self, key: bytes, value: bytes) -> None:
        self._shelf.put(key, value)
        for waiting in [c for c in self._connections if c.parked_key == key]:
            waiting.parked_key = None
            self._answer(waiting, wire.Status.DONE, value)

    def _abandon(self, scope: bytes, reason: bytes) -> None:
        self._shelf.abandon(scope, reason)
        for waiting in [c for c in self._connections if (c.parked_key or b"").startswith(scope)]:
            waiting.parked_key = None
            self._answer(waiting, wire.Status.ABANDONED, reason)

    def _answer(self, connection: _Connection, status: wire.Status, value: bytes = b"") -> None:
        self._send(connection, wire.frame(bytes((status,)) + value))

    def _send(self, connection: _Connection, data: bytes) -> None:
        connection.unsent += data
        try:
            self._flush(connection)
        except OSError as error:
            self._drop(connection, str(error))

    def _flush(self, connection: _Connection) -> None:
        try:
            while connection.unsent:
                del connection.unsent[: connection.socket.send(connection.unsent)]
        except BlockingIOError:
            pass
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.socket, events, connection)
        self._set_deadline(connection)

    def _set_deadline(self, connection: _Connection) -> None:
        """A deadline runs from the first byte of a message, and is not moved by later ones."""
        if connection.is_authentic and not connection.received and not connection.unsent:
            connection.deadline = None
        elif connection.deadline is None:
            connection.deadline = time.monotonic() + self._io_timeout_s

    def _drop(self, connection: _Connection, reason: str) -> None:
        if connection not in self._connections:
            return
        self._forget(connection)
        if connection.host not in self._reported and len(self._reported) < _MAX_REPORTS:
            self._reported.add(connection.host)
            is_last = len(self._reported) == _MAX_REPORTS
            last = "; other addresses are not reported" if is_last else ""
            self._report(f"store: dropped the connection from {connection.peer}: {reason}{last}")

    def _forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()


def _listen(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        for host, port in addresses:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, _, _, _, target = found[0]
            listener = socket.socket(family, socket.SOCK_STREAM)
            listeners.append(listener)
            shorten_pauses(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(target)
            listener.listen(1024)
            listener.setblocking(False)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _address_of(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()[:2]
    return host, port
