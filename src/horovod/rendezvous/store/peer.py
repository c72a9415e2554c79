"""One client as the store's server sees it: bytes in, requests out; proof and codes are checked.

Non-blocking, on the server's thread. Nothing is kept of what a client sends but one message, and
nothing is interpreted before its proof or code holds.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from horovod.rendezvous.base.authentication import NONCE_BYTES, is_proof, new_nonce, prove
from horovod.rendezvous.base.tcp import address_text
from horovod.rendezvous.store import wire

__all__ = ["DropError", "StorePeer"]


class DropError(Exception):
    """The connection must go; the text says why."""


class StorePeer:
    """A connection that has been accepted from ``address``; ``instance`` is its server's.

    ``deadline`` is set while it owes us bytes or does not take ours: ``patience_s`` after the first
    byte of a message, whatever comes later.
    """

    def __init__(
        self,
        accepted: socket.socket,
        address: Any,
        secret: bytes,
        instance: bytes,
        patience_s: float,
    ) -> None:
        self.socket = accepted
        self.name = address_text(address)
        self.host = str(address[0])
        self.is_authentic = False
        self.deadline: float | None = time.monotonic() + patience_s
        self.parked_key: bytes | None = None
        self.parked_until = 0.0
        self._secret = secret
        self._instance = instance
        self._patience_s = patience_s
        self._nonce = new_nonce()
        self._received = bytearray()
        self._unsent = bytearray(wire.MAGIC + self._nonce)

    @property
    def due(self) -> float | None:
        """When something is to be done if nothing happens: an answer, or its end."""
        return self.deadline if self.parked_key is None else self.parked_until

    @property
    def is_slow(self) -> bool:
        """Whether it has not taken all of what it was sent."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send what fits. Raises OSError."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            pass
        self._set_deadline()

    def receive(self) -> bool:
        """Take what has come; False at the end of the stream. Raises OSError, DropError."""
        limit = wire.MAX_BODY_BYTES if self.is_authentic else wire.HELLO_BYTES
        try:
            data = self.socket.recv(limit)
        except BlockingIOError:
            return True
        if not data:
            return False
        if self.parked_key is not None:
            raise DropError("it asked again before it was answered")
        self._received += data
        return True

    def check_goodbye(self) -> None:
        """Between two frames it may leave. Raises DropError."""
        if not self.is_authentic:
            raise DropError("it left without proving that it knows the job's secret")
        if self._received:
            raise DropError("it left in the middle of a message")

    def next_request(self) -> wire.Request | None:
        """Once it has proved itself and a request is whole. Raises OSError, DropError."""
        if not self.is_authentic and not self._authenticate():
            return None
        try:
            body = wire.body_in(self._received, self._its_codes)
            request = None if body is None else wire.decode_request(body)
        except ValueError as error:
            raise DropError(str(error)) from None
        if body is not None:
            del self._received[: wire.FRAME_BYTES + len(body)]
            self.deadline = None
            if self.parked_key is not None or self._unsent:
                raise DropError("it asked again before it was answered")
        self._set_deadline()
        return request

    def answer(self, status: wire.Status, value: bytes = b"") -> None:
        """To its request; it is not parked any more. Raises OSError."""
        self.parked_key = None
        self._unsent += wire.frame(bytes((status,)) + value, self._our_codes)
        self.flush()

    def _authenticate(self) -> bool:
        """Once its hello is whole."""
        if len(self._received) < wire.HELLO_BYTES:
            return False
        hello = bytes(self._received[: wire.HELLO_BYTES])
        del self._received[: wire.HELLO_BYTES]
        if not hello.startswith(wire.MAGIC):
            raise DropError("it does not speak this protocol")
        nonce_end = len(wire.MAGIC) + NONCE_BYTES
        theirs, proof = hello[len(wire.MAGIC) : nonce_end], hello[nonce_end:]
        if not is_proof(proof, self._secret, wire.CLIENT_ROLE, self._nonce, theirs):
            self._unsent += wire.REFUSAL
            self.flush()
            raise DropError("it does not know the job's secret")
        own = prove(self._secret, wire.SERVER_ROLE, theirs, self._nonce, self._instance)
        self._its_codes, self._our_codes = wire.codes_of(self._secret, self._nonce, theirs)
        self.is_authentic, self.deadline = True, None
        self._unsent += self._instance + own
        self.flush()
        return True

    def _set_deadline(self) -> None:
        """It runs from the first byte of a message, and is not moved by later ones."""
        if self.is_authentic and not self._received and not self._unsent:
            self.deadline = None
        elif self.deadline is None:
            self.deadline = time.monotonic() + self._patience_s
