"""The store's server: one thread and one selector, which sleep while there are no requests.

It listens on the loopback interface or at the given addresses, never at all addresses. A client
proves that it knows the job's secret before the server interprets anything from it. A peer that is
slow, wrong, too large or ends in the middle of a message is dropped and reported once per address;
other clients do not notice. The memory and descriptors that peers can use are bounded. Clients are
served before unauthenticated peers, and these before new connections. A ``get`` of an absent key is
parked until the key is set.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from horovod.core.base import threads
from horovod.rendezvous.base.admission import UnauthenticatedPeers, accept_some
from horovod.rendezvous.base.deadlines import Timers
from horovod.rendezvous.base.handshake import ProtocolError
from horovod.rendezvous.base.tcp import address_of, listen_at
from horovod.rendezvous.store import wire
from horovod.rendezvous.store.peer import StorePeer
from horovod.rendezvous.store.values import FullError, StoredValues

_MAX_REPORTS = 20
_MOST_CLIENTS = 65_536  # whose last request number is kept
_TURNS = 8  # of the selector, in which a peer can prove itself before it may be dropped
_PAUSE_S = 0.1  # without descriptors, before it listens again
_LOOPBACK = (("127.0.0.1", 0),)


def _to_stderr(text: str) -> None:
    with suppress(OSError, ValueError):  # stderr may be closed
        sys.stderr.write(f"horovod: {text}\n")


class StoreServer:
    """Serves ``StoreClient``s that know ``secret``, at ``addresses`` (port 0: the system chooses).

    After construction ``addresses`` has the real ports; ``address`` is the first of them. ``start``
    begins to serve on a new thread. ``close`` ends that thread and every connection.

    Args:
        io_timeout_s: limit for the hello and for each frame, not for the time between frames.
        max_unauthenticated: limit of peers without a proof, by default a quarter of the
            descriptors; above it the oldest are dropped.
        report: gets a line for the first dropped connection of each address, on the server's
            thread.
        on_set: gets each key and value that a client has set, on the server's thread.

    Raises:
        OSError: an address is not this machine's or is taken.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        addresses: Sequence[tuple[str, int]] = _LOOPBACK,
        io_timeout_s: float = 10.0,
        max_unauthenticated: int | None = None,
        report: Callable[[str], None] = _to_stderr,
        on_set: Callable[[str, bytes], None] = lambda key, value: None,
    ) -> None:
        self._secret = secret
        self._io_timeout_s = io_timeout_s
        self._report = report
        self._on_set = on_set
        self._reported: set[str] = set()
        self._values = StoredValues()
        self._orders: deque[Callable[[], None]] = deque()
        self._is_closing = False
        self._instance = os.urandom(wire.INSTANCE_BYTES)
        self._peers: set[StorePeer] = set()
        self._unauthenticated = UnauthenticatedPeers[StorePeer](max_unauthenticated)
        self._parked: dict[bytes, dict[StorePeer, None]] = {}
        self._done: dict[bytes, int] = {}  # client -> number of its last set
        self._timers: Timers[StorePeer] = Timers()
        self._listen_again_at: float | None = None
        self._has_paused = False
        self._listeners = listen_at(addresses)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._watch(self._listeners)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="horovod-store", daemon=True)
        self.addresses = [address_of(listener) for listener in self._listeners]
        self.address = self.addresses[0]

    def start(self) -> None:
        """Begin to serve. Connections since construction wait in the backlog.

        Raises:
            OSError: the system starts no further thread.
        """
        threads.start(self._thread)

    def listen(self, addresses: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Listen at further addresses and return them; from any thread. Serving begins soon.

        Raises:
            OSError: as for construction.
        """
        listeners = listen_at(addresses)

        def watch() -> None:
            self._listeners += listeners
            if self._listen_again_at is None:
                self._watch(listeners)

        self._order(watch)
        added = [address_of(listener) for listener in listeners]
        self.addresses += added
        return added

    def set(self, key: str, value: bytes) -> None:
        """Set ``key`` as a client would; from any thread, done soon."""
        self._order(lambda: self._put(key.encode(), value))

    def abandon(self, scope: str, reason: str) -> None:
        """Drop all keys that begin with ``scope``; requests for them fail with ``reason``.

        From any thread, done soon.
        """
        self._order(lambda: self._abandon(scope.encode(), reason.encode(errors="replace")))

    def drop(self, scope: str) -> None:
        """Drop the values under keys that begin with ``scope``; from any thread, done soon."""
        self._order(lambda: self._values.drop(scope.encode()))

    def found(self, scope: str) -> dict[str, bytes]:
        """The values of keys that begin with ``scope``; from any thread while the server runs.

        Blocks until earlier calls of ``set`` are done; empty if that takes too long.
        """
        values: dict[str, bytes] = {}
        is_read = threading.Event()

        def read() -> None:
            values.update(self._values.found(scope.encode()))
            is_read.set()

        self._order(read)
        return values if is_read.wait(2 * self._io_timeout_s) else {}

    def close(self) -> None:
        """Stop serving and drop every connection; blocks until the thread has ended."""
        self._is_closing = True
        if self._thread.is_alive():
            self._wake_writer.send(b"x")
            self._thread.join()
        self._take_orders()  # an order may add listeners
        for peer in self._peers:
            peer.socket.close()
        self._peers.clear()
        self._selector.close()
        for each in (*self._listeners, self._wake_reader, self._wake_writer):
            each.close()

    def __enter__(self) -> StoreServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            events = self._selector.select(self._seconds_to_next_deadline())
            for key, mask in sorted(events, key=self._turn_of):
                if key.fileobj is self._wake_reader:
                    self._wake_reader.recv(4096)
                    if self._is_closing:
                        return
                    self._take_orders()
                elif isinstance(key.data, StorePeer):
                    self._advance(key.data, mask)
                else:
                    self._accept(key.data)
            self._expire(time.monotonic())

    def _turn_of(self, event: tuple[selectors.SelectorKey, int]) -> int:
        data = event[0].data
        if isinstance(data, StorePeer):
            return 1 if data.is_authentic else 2
        return 0 if data is None else 3

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
        times = [t for t in (self._timers.first(), self._listen_again_at) if t is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _expire(self, now: float) -> None:
        if self._listen_again_at is not None and self._listen_again_at <= now:
            self._listen_again_at = None
            self._watch(self._listeners)
        while (peer := self._timers.take(now)) is not None:
            if peer.parked_key is not None:
                self._unpark(peer)
                self._answer(peer, wire.Status.TIMEOUT)
            else:
                what = "whole message" if peer.is_authentic else "proof of the secret"
                self._drop(peer, f"no {what} within {self._io_timeout_s:g} s")

    # New connections.

    def _watch(self, listeners: Sequence[socket.socket]) -> None:
        for listener in listeners:
            self._selector.register(listener, selectors.EVENT_READ, listener)

    def _accept(self, listener: socket.socket) -> None:
        if self._listen_again_at is not None:
            return
        try:
            # Few at once, so that each of them has many turns to prove itself.
            for accepted, address in accept_some(listener, self._unauthenticated.most // _TURNS):
                if self._unauthenticated.is_full:
                    self._make_room(f"{len(self._unauthenticated)} others have none either")
                self._welcome(accepted, address)
        except OSError as error:
            if not self._make_room(str(error)):
                self._pause(str(error))

    def _welcome(self, accepted: socket.socket, address: Any) -> None:
        peer = StorePeer(accepted, address, self._secret, self._instance, self._io_timeout_s)
        self._peers.add(peer)
        self._unauthenticated.add(peer, peer.host)
        self._selector.register(accepted, selectors.EVENT_READ, peer)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Keepalive ends the connection of a machine that is gone.
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer.flush()
        except OSError as error:
            self._drop(peer, str(error))
        self._time(peer)

    def _make_room(self, reason: str) -> bool:
        """Drop an unauthenticated peer, if there is one."""
        peer = self._unauthenticated.first_to_go()
        if peer is not None:
            self._drop(peer, f"no proof of the secret yet and {reason}")
        return peer is not None

    def _pause(self, reason: str) -> None:
        if not self._has_paused:
            self._report(f"store: new connections have to wait: {reason}")
        self._has_paused = True
        for listener in self._listeners:
            self._selector.unregister(listener)
        self._listen_again_at = time.monotonic() + _PAUSE_S

    # Requests.

    def _advance(self, peer: StorePeer, events: int) -> None:
        if peer not in self._peers:
            return  # dropped since the selector returned
        try:
            if events & selectors.EVENT_WRITE:
                peer.flush()
            if events & selectors.EVENT_READ:
                self._read(peer)
        except (ProtocolError, OSError) as error:
            self._drop(peer, str(error))
        self._time(peer)

    def _read(self, peer: StorePeer) -> None:
        if not peer.receive():
            peer.check_goodbye()
            self._forget(peer)
            return
        while (request := peer.next_request()) is not None:
            self._handle(peer, request)
        if peer.is_authentic:
            self._unauthenticated.remove(peer)

    def _handle(self, peer: StorePeer, request: wire.Request) -> None:
        if (reason := self._values.reason_against(request.key)) is not None:
            peer.answer(wire.Status.ABANDONED, reason)
        elif request.operation == wire.Operation.SET:
            peer.answer(*self._set(request))
        elif (value := self._values.get(request.key)) is not None:
            peer.answer(wire.Status.DONE, value)
        elif request.timeout_ms == 0:
            peer.answer(wire.Status.TIMEOUT)
        else:
            peer.parked_key = request.key
            peer.parked_until = time.monotonic() + request.timeout_ms / 1000
            self._parked.setdefault(request.key, {})[peer] = None

    def _set(self, request: wire.Request) -> tuple[wire.Status, bytes]:
        """Set the key once, even if a client sends the request again; the answer."""
        if request.number <= self._done.get(request.client, -1):
            # Sent again, or delayed on a connection that the client has left.
            return wire.Status.DONE, b""
        try:
            self._put(request.key, request.value)
        except FullError as error:
            return wire.Status.FULL, str(error).encode()
        self._done.pop(request.client, None)
        self._done[request.client] = request.number
        if len(self._done) > _MOST_CLIENTS:
            del self._done[next(iter(self._done))]
        # Before the answer, since the client may end after it.
        self._on_set(request.key.decode(errors="replace"), request.value)
        return wire.Status.DONE, b""

    def _put(self, key: bytes, value: bytes) -> None:
        self._values.put(key, value)
        for waiting in list(self._parked.get(key, ())):
            self._unpark(waiting)
            self._answer(waiting, wire.Status.DONE, value)

    def _abandon(self, scope: bytes, reason: bytes) -> None:
        self._values.abandon(scope, reason)
        for key in [key for key in self._parked if key.startswith(scope)]:
            for waiting in list(self._parked[key]):
                self._unpark(waiting)
                self._answer(waiting, wire.Status.ABANDONED, reason)

    def _unpark(self, peer: StorePeer) -> None:
        if peer.parked_key is not None:
            waiting = self._parked[peer.parked_key]
            del waiting[peer]
            if not waiting:
                del self._parked[peer.parked_key]
            peer.parked_key = None

    def _answer(self, peer: StorePeer, status: wire.Status, value: bytes = b"") -> None:
        try:
            peer.answer(status, value)
        except OSError as error:
            self._drop(peer, str(error))
        self._time(peer)

    def _time(self, peer: StorePeer) -> None:
        """Update the deadline and the awaited events of a peer after each action."""
        if peer not in self._peers:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.is_slow else 0)
        if self._selector.get_key(peer.socket).events != events:
            self._selector.modify(peer.socket, events, peer)
        self._timers.set(peer, peer.due)

    def _drop(self, peer: StorePeer, reason: str) -> None:
        if peer not in self._peers:
            return
        self._forget(peer)
        if peer.host not in self._reported and len(self._reported) < _MAX_REPORTS:
            self._reported.add(peer.host)
            is_last = len(self._reported) == _MAX_REPORTS
            last = "; other addresses are not reported" if is_last else ""
            self._report(f"store: dropped the connection from {peer.name}: {reason}{last}")

    def _forget(self, peer: StorePeer) -> None:
        self._unpark(peer)
        self._peers.discard(peer)
        self._unauthenticated.remove(peer)
        self._timers.set(peer, None)
        self._selector.unregister(peer.socket)
        peer.socket.close()
