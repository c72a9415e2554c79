"""One connection of a client to the store, after the proof exchange, with a code on each message.

The first error ends it; ``StoreClient`` dials again.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Sequence

from horovod.core.base.on_error import on_error
from horovod.errors import InitError
from horovod.rendezvous.base.authentication import RecordCodes
from horovod.rendezvous.base.handshake import Dialer, ProtocolError, RefusedError
from horovod.rendezvous.base.tcp import address_text, shorten_pauses
from horovod.rendezvous.store import wire

_MESSAGE_S = 10.0  # for the rest of a message that has begun


class StoreUnreachableError(InitError):
    """No process listens where the store should be, or its name is unknown; that may change."""


class LostError(InitError):
    """The connection was cut or not made in time; another one may succeed."""


class SilentError(LostError):
    """The store is connected but has not answered in time."""


class _UnansweredError(StoreUnreachableError, LostError):
    """There was no answer, which does not prove that no process listens."""


class StoreChannel:
    """Connected within ``connect_s`` and authenticated within ``timeout_s``.

    ``instance`` tells servers apart.

    Raises:
        StoreUnreachableError: no process listens.
        LostError: the connection was cut or not made in time.
        InitError: the listener does not know the job's secret, or is no store of this version.
    """

    def __init__(
        self, address: tuple[str, int], secret: bytes, *, timeout_s: float, connect_s: float
    ) -> None:
        self._name = address_text(address)
        self._deadline = time.monotonic() + timeout_s
        self._socket = self._connect(address, min(timeout_s, connect_s))
        with on_error(self._socket.close):
            self._authenticate(secret)

    def ask(
        self,
        requests: Sequence[bytes],
        timeout_s: float,
        is_last: Callable[[int, bytes], bool] = lambda number, answer: False,
    ) -> list[bytes]:
        """The bodies of the answers to the bodies of requests, which are sent together.

        After an answer that the store is full, or one that ``is_last`` by its number and body, the
        others are not waited for: then close it.

        Raises:
            SilentError: an answer has not begun within ``timeout_s``.
            LostError: the connection was cut, or its bytes were altered on the way.
        """
        self._deadline = end = time.monotonic() + timeout_s
        self._send(b"".join(wire.frame(request, self._send_codes) for request in requests))
        answers = []
        for number in range(len(requests)):
            self._deadline = end
            answers.append(self._answer())
            if answers[-1][:1] == bytes((wire.Status.FULL,)) or is_last(number, answers[-1]):
                break
        return answers

    def _answer(self) -> bytes:
        received = self._receive(1)
        self._deadline = min(self._deadline, time.monotonic() + _MESSAGE_S)
        try:
            while (body := wire.body_in(received, self._receive_codes)) is None:
                received += self._receive(wire.missing_bytes(received))
        except ProtocolError as error:
            raise LostError(f"init: the store at {self._name} sent {error}") from None
        except SilentError:
            raise LostError(
                f"init: the store at {self._name} stopped in the middle of an answer"
            ) from None
        return body

    def close(self) -> None:
        """End the connection; may be repeated."""
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
                with on_error(connected.close):
                    # The addresses share the time that is left.
                    left_s = deadline - time.monotonic()
                    connected.settimeout(max(left_s / (len(found) - number), 0.001))
                    connected.connect(target)
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    return connected
            except OSError as error:
                is_silent |= isinstance(error, (TimeoutError, ConnectionResetError))
                reason = f"{error}{_advice(error, target[0])}"
                reasons.append(f"{address_text(target)}: {reason}" if len(found) > 1 else reason)
        raise (_UnansweredError if is_silent else StoreUnreachableError)(
            f"init: cannot reach the launcher's store at {self._name}: {'; '.join(reasons)}; "
            "is its launcher still running?"
        )

    def _authenticate(self, secret: bytes) -> None:
        side = Dialer(wire.PROTOCOL, secret)
        challenge = self._receive(wire.PROTOCOL.challenge_bytes)
        magic = wire.PROTOCOL.magic
        if not challenge.startswith(magic):
            raise InitError(
                f"init: {self._name} is not a store of this version: it sent "
                f"{challenge[: len(magic)]!r}, expected {magic!r}; use one version of horovod "
                "everywhere"
            )
        self._send(side.hello(challenge))
        try:
            self.instance = side.read_reply(self._receive(wire.PROTOCOL.reply_bytes))
        except RefusedError:
            raise InitError(
                f"init: the store at {self._name} refused this process: "
                "_HOROVOD_SECRET_KEY is not this job's"
            ) from None
        except ProtocolError:
            raise InitError(
                f"init: the store at {self._name} does not know the job's secret "
                "(_HOROVOD_SECRET_KEY); it may belong to another job"
            ) from None
        self._send_codes = RecordCodes(side.send_key)
        self._receive_codes = RecordCodes(side.receive_key)

    def _send(self, data: bytes) -> None:
        try:
            self._arm()
            self._socket.sendall(data)
        except OSError as error:
            raise LostError(f"init: lost the store at {self._name}: {error}") from None

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                self._arm()  # an error if another thread has closed the connection
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


def _advice(error: OSError, host: object) -> str:
    # A new network namespace begins so.
    if error.errno == errno.ENETUNREACH and host == "127.0.0.1":
        return " (the loopback interface is down; ip link set lo up)"
    return ""
