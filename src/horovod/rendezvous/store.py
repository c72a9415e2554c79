"""A key-value store that all ranks of a job can reach while they find each other.

``Store`` is what the mesh needs of it; ``StoreClient`` speaks to the ``StoreServer`` inside our
launcher, ``torchrun.TorchStore`` to the one that torchrun keeps. A client is used by one thread at
a time and may stay open, silent, for as long as the process lives.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from horovod.errors import InitError
from horovod.rendezvous import wire
from horovod.rendezvous.authentication import PROOF_BYTES, is_proof, new_nonce, prove
from horovod.rendezvous.tcp import shorten_pauses

__all__ = [
    "REPORT_KEYS",
    "AbandonedError",
    "Store",
    "StoreClient",
    "StoreUnreachableError",
    "address_text",
]

# What the keys begin with under which processes tell the report of their job.
REPORT_KEYS = "report/"

# How much longer than the server a client waits for an answer: only a stopped server is that late.
_GRACE_S = 5.0


def address_text(address: Sequence[Any]) -> str:
    """A socket address for messages: ``10.0.0.5:80``, ``[::1]:80``."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Store(Protocol):
    """Small values under text keys, visible to every rank; a later ``set`` replaces the value."""

    def set(self, key: str, value: bytes) -> None:
        """Store ``value``; blocks until the store has it. InitError if the store is gone."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """The value of ``key``; blocks until some rank has set it.

        Raises:
            TimeoutError: nobody set it within ``timeout_s``; the store stays usable.
            InitError: the store is gone.
        """

    def close(self) -> None:
        """End the connection; may be called twice."""


class AbandonedError(InitError):
    """What the store was asked for belongs to a world that will not be; the text says why."""


class StoreUnreachableError(InitError):
    """Nobody listens where the store should be, or its name is unknown; that may change."""


class StoreClient:
    """A connection to the launcher's ``StoreServer`` at ``(host, port)``.

    ``host`` is a name or an IPv4 or IPv6 address; of a name's addresses the first that can be
    connected to is used. Construction connects and authenticates both sides, within ``timeout_s``.

    Raises:
        StoreUnreachableError: nobody listens.
        InitError: the other side does not know the job's secret.
    """

    def __init__(self, address: tuple[str, int], secret: bytes, *, timeout_s: float) -> None:
        self.address = address
        self._name = address_text(address)
        self._lock = threading.Lock()
        self._deadline = time.monotonic() + timeout_s
        self._socket = self._connect(address)
        try:
            self._authenticate(secret)
        except BaseException:
            self._socket.close()
            raise

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended, by ``close`` or by an error."""
        return self._socket.fileno() < 0

    def set(self, key: str, value: bytes) -> None:
        """See ``Store.set``; ValueError for keys over 255 bytes or values over about 64 KiB."""
        self._ask(wire.Request(wire.Operation.SET, key.encode(), value), 0.0)

    def get(self, key: str, timeout_s: float) -> bytes:
        """See ``Store.get``."""
        timeout_ms = max(0, math.ceil(timeout_s * 1000))
        request = wire.Request(wire.Operation.GET, key.encode(), timeout_ms=timeout_ms)
        status, value = self._ask(request, timeout_s)
        if status != wire.Status.DONE:
            raise TimeoutError(f"store: nobody set {key!r} within {timeout_s:g} s")
        return value

    def close(self) -> None:
        """See ``Store.close``."""
        self._socket.close()

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        except OSError as error:
            raise StoreUnreachableError(
                f"init: cannot find the launcher's store at {self._name}: {error}"
            ) from None
        reasons = []
        for number, (family, kind, protocol, _, target) in enumerate(found):
            connected = socket.socket(family, kind, protocol)
            shorten_pauses(connected)
            try:
                # What is left is shared with those still to be tried.
                left_s = self._deadline - time.monotonic()
                connected.settimeout(max(left_s / (len(found) - number), 0.001))
                connected.connect(target)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except OSError as error:
                connected.close()
                reasons.append(f"{address_text(target)}: {error}" if len(found) > 1 else str(error))
            except BaseException:
                connected.close()
                raise
            else:
                return connected
        raise StoreUnreachableError(
            f"init: cannot reach the launcher's store at {self._name}: {'; '.join(reasons)}; "
            "is horovodrun still running?"
        )

    def _authenticate(self, secret: bytes) -> None:
        challenge = self._receive(wire.CHALLENGE_BYTES)
        magic, theirs = challenge[: len(wire.MAGIC)], challenge[len(wire.MAGIC) :]
        if magic != wire.MAGIC:
            raise InitError(
                f"init: {self._name} is not a store of this version: it sent {magic!r}, "
                f"expected {wire.MAGIC!r}; use one version of horovod everywhere"
            )
        mine = new_nonce()
        self._send(wire.MAGIC + mine + prove(secret, wire.CLIENT_ROLE, theirs, mine))
        try:
            answer = self._receive(PROOF_BYTES)
        except InitError as error:
            raise InitError(
                f"init: the store at {self._name} refused this process ({error}): "
                "_HOROVOD_SECRET_KEY is not this job's"
            ) from None
        if not is_proof(answer, secret, wire.SERVER_ROLE, mine, theirs):
            raise InitError(
                f"init: the store at {self._name} does not know the job's secret "
                "(_HOROVOD_SECRET_KEY); it may belong to another job"
            )

    def _ask(self, request: wire.Request, timeout_s: float) -> tuple[int, bytes]:
        message = wire.frame(wire.encode_request(request))
        with self._lock:
            if self.is_closed:
                raise InitError(f"init: the connection to the store at {self._name} has ended")
            self._deadline = time.monotonic() + timeout_s + _GRACE_S
            try:
                self._send(message)
                (body_bytes,) = wire.LENGTH.unpack(self._receive(wire.LENGTH.size))
                if not 1 <= body_bytes <= wire.MAX_BODY_BYTES:
                    raise InitError(f"init: the store at {self._name} sent {body_bytes} bytes")
                body = self._receive(body_bytes)
            except BaseException:
                # Interrupted between question and answer: the next answer would be the wrong one.
                self._socket.close()
                raise
        if body[0] == wire.Status.ABANDONED:
            raise AbandonedError(f"init: {body[1:].decode(errors='replace')}")
        return body[0], body[1:]

    def _send(self, data: bytes) -> None:
        self._arm()
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise InitError(f"init: lost the store at {self._name}: {error}") from None

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            self._arm()
            try:
                more = self._socket.recv(count - len(data))
            except TimeoutError:
                raise InitError(f"init: the store at {self._name} does not answer") from None
            except OSError as error:
                raise InitError(f"init: lost the store at {self._name}: {error}") from None
            if not more:
                raise InitError(f"init: the store at {self._name} closed the connection")
            data += more
        return data

    def _arm(self) -> None:
        self._socket.settimeout(max(self._deadline - time.monotonic(), 0.001))
