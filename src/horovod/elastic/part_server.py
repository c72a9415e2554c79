"""Rank 0 gives the parts of its state to processes that are about to join, while training goes on.

A thread accepts connections and each connection has a thread. A client has to prove that it knows
the job's secret before anything that it sends is used. The numbers of connections are limited, and
a client that is not served gets the state when it joins.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.core.base import threads
from horovod.core.base.checked import BadMessageError
from horovod.elastic.parts import (
    ANSWER_S,
    CHUNK_BYTES,
    HANDSHAKE_S,
    NONE,
    PROTOCOL,
    SILENT_S,
    PartAnswer,
    PartRequest,
    PartStream,
    StatePart,
    StateParts,
    receive_exactly,
)
from horovod.rendezvous.base.admission import UnauthenticatedPeers
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.handshake import Listener, ProtocolError
from horovod.rendezvous.base.tcp import address_of, listen_at, tune

_MOST_CLIENTS = 64
_MOST_STRANGERS = 16
_LOOK_S = 0.5  # until a thread that has nothing to send looks again
_PATIENCE_S = 30.0  # for which training may go on without a client that lacks something
_KEEP_S = 10.0  # for which it remembers what a client that is gone has
_SHORT_S = 0.5  # for which ranks may wait for a part of another one
_ENDS = (OSError, ProtocolError, BadMessageError)


@dataclass(eq=False)
class _Client:
    """A connection.

    ``seconds``: for ``sent_bytes``; ``asked_at``: when the part under way was asked for, or 0.
    """

    socket: socket.socket
    has_been_current: bool = False
    versions: Sequence[int] = ()
    sent_bytes: int = 0
    seconds: float = 0.0
    asked_at: float = 0.0


_Numbered = tuple[int, int, StatePart]  # number, version, part


class _Versions:
    """Gives each content of each part a number; no two servers give the same ones."""

    def __init__(self) -> None:
        self._last = int.from_bytes(os.urandom(7), "big")
        self._known: list[tuple[int, StatePart]] = []

    def look(self, parts: Sequence[StatePart]) -> list[tuple[int, StatePart]]:
        """The parts with their versions."""
        known = self._known if len(self._known) == len(parts) else [None] * len(parts)
        self._known = [
            (before[0] if before and part.is_same(before[1]) else self._next(), part)
            for before, part in zip(known, parts, strict=True)
        ]
        return self._known

    @property
    def has_tensors(self) -> bool:
        """Whether it keeps any."""
        return bool(self._known)

    def forget(self) -> None:
        """Keep no tensors."""
        self._known = []

    def _next(self) -> int:
        self._last += 1
        return self._last


class PartServer:
    """Serves ``parts`` at ``addresses`` to processes that know ``secret``, until ``close``.

    Args:
        hosts: the addresses of this machine to listen at; the system chooses the ports.

    Raises:
        OSError: it cannot listen there, or the system starts no further thread.
    """

    def __init__(self, parts: StateParts, secret: bytes, hosts: Sequence[str]) -> None:
        self._parts = parts
        self._secret = secret
        self._lock = threading.Lock()
        self._versions = _Versions()
        self._clients: set[_Client] = set()  # that have proved that they know the secret
        self._strangers = UnauthenticatedPeers[_Client](_MOST_STRANGERS)
        self._client_at = 0.0  # when there was one
        self._waits_since: float | None = None
        self._has_ended = threading.Event()
        self._listeners = listen_at([(host, 0) for host in hosts])
        self.addresses = tuple(address_of(listener) for listener in self._listeners)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._acceptor = threading.Thread(target=self._accept, name="horovod-parts", daemon=True)
        try:
            threads.start(self._acceptor)
        except OSError:
            self._close_sockets()
            raise

    def should_wait(self) -> bool:
        """Whether a process that joined now would hold up training, and will not soon.

        It would while it gets what it lacks. Not for longer than half a minute without a break.
        """
        with self._lock:
            readers = [client for client in self._clients if client.has_been_current]
            found = self._versions.look(self._parts.read()) if readers else []
            if not any(self._lag_s(client, found) > _SHORT_S for client in readers):
                self._waits_since = None
                return False
            self._waits_since = self._waits_since or time.monotonic()
            return time.monotonic() - self._waits_since < _PATIENCE_S

    def _lag_s(self, client: _Client, found: Sequence[tuple[int, StatePart]]) -> float:
        """How long the client would need for what it lacks; ``found`` are parts and versions."""
        if len(client.versions) != len(found):
            return 0.0  # it will be told so
        lacking_bytes = sum(
            part.size_bytes
            for number, (version, part) in enumerate(found)
            if client.versions[number] != version or not part.is_settled
        )
        return lacking_bytes * client.seconds / max(client.sent_bytes, 1)

    def close(self) -> None:
        """Stop listening and end all connections; does not wait for their threads."""
        self._has_ended.set()
        self._wake_writer.send(b"x")
        self._acceptor.join()
        self._close_sockets()
        with self._lock:
            for client in self._clients:
                _end(client)
            while (stranger := self._strangers.first_to_go()) is not None:
                self._strangers.remove(stranger)
                _end(stranger)

    def _close_sockets(self) -> None:
        for each in (*self._listeners, self._wake_reader, self._wake_writer):
            each.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            for each in (*self._listeners, self._wake_reader):
                selector.register(each, selectors.EVENT_READ, each)
            while not self._has_ended.is_set():
                is_idle = not (self._clients or self._strangers or self._versions.has_tensors)
                for key, _ in selector.select(None if is_idle else _KEEP_S):
                    if key.data is not self._wake_reader:
                        self._welcome(key.data)
                with self._lock:
                    is_over = time.monotonic() - self._client_at > _KEEP_S
                    if is_over and not self._clients:
                        self._versions.forget()

    def _welcome(self, listener: socket.socket) -> None:
        try:
            accepted, address = listener.accept()
        except OSError:  # it is gone already, or there are too many open files
            self._has_ended.wait(_LOOK_S / 10)
            return
        client = _Client(accepted)
        with self._lock:
            if self._strangers.is_full and (oldest := self._strangers.first_to_go()) is not None:
                self._strangers.remove(oldest)
                _end(oldest)
            self._strangers.add(client, str(address[0]))
        thread = threading.Thread(
            target=self._serve, args=(client,), name="horovod-part", daemon=True
        )
        try:
            threads.start(thread)
        except OSError:
            self._forget(client)

    def _forget(self, client: _Client) -> None:
        client.socket.close()
        with self._lock:
            self._strangers.remove(client)
            if client in self._clients:
                self._clients.remove(client)
                self._client_at = time.monotonic()

    def _serve(self, client: _Client) -> None:
        try:
            stream = self._prove(client)
            while not self._has_ended.is_set():
                request = PartRequest.from_bytes(stream.receive())
                if client.asked_at:  # for a part, which has arrived
                    client.seconds += time.monotonic() - client.asked_at
                self._answer(client, request, stream)
        except _ENDS:
            pass  # it has joined or ended, or does not know the secret
        finally:
            self._forget(client)

    def _prove(self, client: _Client) -> PartStream:
        connected, deadline = client.socket, Deadline(HANDSHAKE_S)
        connected.settimeout(HANDSHAKE_S)
        side = Listener(PROTOCOL, self._secret)
        connected.sendall(side.opening)
        try:
            side.read_hello(receive_exactly(connected, PROTOCOL.hello_bytes, deadline))
        except ProtocolError:
            connected.sendall(PROTOCOL.refusal)
            raise
        with self._lock:
            self._strangers.remove(client)
            if len(self._clients) == _MOST_CLIENTS:
                raise ProtocolError("too many processes are about to join")
            self._clients.add(client)
        connected.sendall(side.reply())
        tune(connected, SILENT_S)
        return PartStream(connected, side)

    def _answer(self, client: _Client, request: PartRequest, stream: PartStream) -> None:
        """Answer once there is something else to say than the client knows."""
        client.versions, client.asked_at = request.versions, 0.0
        until = time.monotonic() + ANSWER_S
        while True:
            count, lacking, is_current = self._compare(request.versions)
            client.has_been_current |= is_current
            is_late = self._has_ended.is_set() or time.monotonic() >= until
            is_misfit = count != len(request.versions)
            if lacking or is_late or is_misfit or is_current != request.is_current:
                break
            self._has_ended.wait(_LOOK_S)
        if lacking is None:
            stream.send(PartAnswer(count, is_current).to_bytes())
            if is_misfit:
                raise BadMessageError(
                    request.message, "versions", str(request.versions), f"{count}"
                )
            return
        number, version, part = lacking
        client.asked_at = time.monotonic()
        client.sent_bytes += part.size_bytes
        answer = PartAnswer(count, False, number, version, part.header, part.size_bytes)
        stream.send(answer.to_bytes())
        for tensor in part.tensors:
            data = self._parts.bytes_of(tensor)
            for start in range(0, data.nbytes, CHUNK_BYTES):
                stream.send(data[start : start + CHUNK_BYTES])

    def _compare(self, versions: Sequence[int]) -> tuple[int, _Numbered | None, bool]:
        """How many parts there are, the one that the client should get next, if it is current.

        One that is about to change waits, unless the client has none. Those that it has none of
        come first. The longer ago a part has changed, the sooner it will change again, so it comes
        later.
        """
        with self._lock:
            now = self._versions.look(self._parts.read())
        if len(now) != len(versions):
            return len(now), None, False
        lacking = [
            (number, version, part)
            for number, (version, part) in enumerate(now)
            if versions[number] != version and (part.is_settled or versions[number] == NONE)
        ]

        def urgency(each: _Numbered) -> tuple[bool, bool, int, int]:
            number, version, part = each
            return part.is_settled, versions[number] == NONE, part.changed_at, version

        best = max(lacking, key=urgency, default=None)
        return len(now), best, best is None


def _end(client: _Client) -> None:
    """End its connection, whose thread closes it."""
    with contextlib.suppress(OSError):
        client.socket.shutdown(socket.SHUT_RDWR)
