"""One connection of a client to the launcher's store: both sides have proved that they know the
job's secret, and each message carries a code. The first error ends it; ``StoreClient`` dials again.
"""

from __future__ import annotations

import socket
import time

from horovod.errors import InitError
from horovod.rendezvous.base.authentication import is_proof, new_nonce, prove
from horovod.rendezvous.base.tcp import address_text, shorten_pauses
from horovod.rendezvous.store import wire

__all__ = ["LostError", "SilentError", "StoreChannel", "StoreUnreachableError"]

_MESSAGE_S = 10.0  # for the rest of a message that has begun


class StoreUnreachableError(InitError):
    """Nobody listens where the store should be, or its name is unknown; that may change."""


class LostError(InitError):
    """The connection was cut, or did not come about in time: another one may do better."""


class SilentError(LostError):
    """It is there, but has not answered in time."""


class _UnansweredError(StoreUnreachableError, LostError):
    """Nobody has answered, which is no proof that nobody listens."""


class StoreChannel:
    """Connected within ``connect_s`` and authenticated within ``timeout_s``.

    ``instance`` tells servers apart.

    Raises:
        StoreUnreachableError: nobody listens.
        LostError: see there.
        InitError: who is there does not know the job's secret, or is no store of this version.
    """

    def __init__(
        self, address: tuple[str, int], secret: bytes, *, timeout_s: float, connect_s: float
    ) -> None:
        self._name = address_text(address)
        self._deadline = time.monotonic() + timeout_s
        self._socket = self._connect(address, min(timeout_s, connect_s))
        try:
            self._authenticate(secret)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, request: bytes, timeout_s: float) -> bytes:
        """The body of the answer to the body of a request.

        Raises:
            SilentError: none has begun within ``timeout_s``.
            LostError: the connection was cut, or somebody on the way has altered what it carries.
        """
        self._deadline = time.monotonic() + timeout_s
        self._send(wire.frame(request, self._our_codes))
        received = self._receive(1)
        self._deadline = min(self._deadline, time.monotonic() + _MESSAGE_S)
        try:
            while (body := wire.body_in(received, self._its_codes)) is None:
                received += self._receive(wire.missing_bytes(received))
        except ValueError as error:
            raise LostError(f"init: the store at {self._name} sent {error}") from None
        except SilentError:
            raise LostError(
                f"init: the store at {self._name} stopped in the middle of an answer"
            ) from None
        return body

    def close(self) -> None:
        """May be repeated."""
        self._socket.close()

    def _connect(self, address: tuple[str, int], connect_s: float) -> socket.socket:
        deadline = time.monotonic() + connect_s
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        except OSError as error:
            raise StoreUnreachableError(
                f"init: cannot find the launcher's store at {self._name}: {error}"
            ) from None
        reasons = []
        is_silent = False
        for number, (family, kind, protocol, _, target) in enumerate(found):
            connected = socket.socket(family, kind, protocol)
            shorten_pauses(connected)
            try:
                # What is left is shared with those still to be tried.
                left_s = deadline - time.monotonic()
                connected.settimeout(max(left_s / (len(found) - number), 0.001))
                connected.connect(target)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except OSError as error:
                connected.close()
                is_silent |= isinstance(error, (TimeoutError, ConnectionResetError))
                reasons.append(f"{address_text(target)}: {error}" if len(found) > 1 else str(error))
            except BaseException:
                connected.close()
                raise
            else:
                return connected
        raise (_UnansweredError if is_silent else StoreUnreachableError)(
            f"init: cannot reach the launcher's store at {self._name}: {'; '.join(reasons)}; "
            "is its launcher still running?"
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
        welcome = self._receive(wire.WELCOME_BYTES)
        if welcome == wire.REFUSAL:
            raise InitError(
                f"init: the store at {self._name} refused this process: "
                "_HOROVOD_SECRET_KEY is not this job's"
            )
        self.instance, proof = welcome[: wire.INSTANCE_BYTES], welcome[wire.INSTANCE_BYTES :]
        if not is_proof(proof, secret, wire.SERVER_ROLE, mine, theirs, self.instance):
            raise InitError(
                f"init: the store at {self._name} does not know the job's secret "
                "(_HOROVOD_SECRET_KEY); it may belong to another job"
            )
        self._our_codes, self._its_codes = wire.codes_of(secret, theirs, mine)

    def _send(self, data: bytes) -> None:
        self._arm()
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise LostError(f"init: lost the store at {self._name}: {error}") from None

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            self._arm()
            try:
                more = self._socket.recv(count - len(data))
            except OSError as error:
                if isinstance(error, TimeoutError) and error.errno is None:  # ours
                    raise SilentError(f"init: the store at {self._name} does not answer") from None
                raise LostError(f"init: lost the store at {self._name}: {error}") from None
            if not more:
                raise LostError(f"init: the store at {self._name} closed the connection")
            data += more
        return data

    def _arm(self) -> None:
        self._socket.settimeout(max(self._deadline - time.monotonic(), 0.001))
