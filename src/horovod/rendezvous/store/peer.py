"""One client as the store's server sees it: bytes in, requests out; proof and codes are checked.

Non-blocking, on the server's thread. The server keeps at most one message of a client, and
interprets nothing before its proof or code holds.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from horovod.rendezvous.base.authentication import RecordCodes
from horovod.rendezvous.base.handshake import Listener, ProtocolError
from horovod.rendezvous.base.tcp import address_text
from horovod.rendezvous.store import wire


class StorePeer:
    """A connection that was accepted from ``address``. ``instance`` is its server's.

    ``deadline`` is set while the client owes bytes or does not take ours. It is ``io_timeout_s``
    after the first byte of a message, and later bytes do not move it. Methods raise
    ``ProtocolError`` or ``OSError`` when the connection must be dropped.
    """

    def __init__(
        self,
        accepted: socket.socket,
        address: Any,
        secret: bytes,
        instance: bytes,
        io_timeout_s: float,
    ) -> None:
        self.socket = accepted
        self.name = address_text(address)
        self.host = str(address[0])
        self.is_authentic = False
        self.deadline: float | None = time.monotonic() + io_timeout_s
        self.parked_key: bytes | None = None
        self.parked_until = 0.0
        self._side = Listener(wire.PROTOCOL, secret)
        self._instance = instance
        self._io_timeout_s = io_timeout_s
        self._received = bytearray()
        self._unsent = bytearray(self._side.opening)

    @property
    def due(self) -> float | None:
        """When the server must answer or drop this client, if nothing happens before."""
        return self.deadline if self.parked_key is None else self.parked_until

    @property
    def is_slow(self) -> bool:
        """Whether it has not taken all bytes for it."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send what fits."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            pass
        self._set_deadline()

    def receive(self) -> bool:
        """Take what has arrived; False at the end of the stream."""
        limit = wire.MAX_BODY_BYTES if self.is_authentic else wire.PROTOCOL.hello_bytes
        try:
            data = self.socket.recv(limit)
        except BlockingIOError:
            return True
        if not data:
            return False
        if self.parked_key is not None:
            raise ProtocolError("it asked again before it was answered")
        self._received += data
        return True

    def check_goodbye(self) -> None:
        """A client may leave between two frames only."""
        if not self.is_authentic:
            raise ProtocolError("it left without proving that it knows the job's secret")
        if self._received:
            raise ProtocolError("it left in the middle of a message")

    def next_request(self) -> wire.Request | None:
        """The next whole request of an authenticated client."""
        if not self.is_authentic and not self._authenticate():
            return None
        body = wire.body_in(self._received, self._receive_codes)
        request = None if body is None else wire.Request.from_bytes(body)
        if body is not None:
            del self._received[: wire.frame_bytes(body)]
            self.deadline = None
            if self.parked_key is not None or self._unsent:
                raise ProtocolError("it asked again before it was answered")
        self._set_deadline()
        return request

    def answer(self, status: wire.Status, value: bytes = b"") -> None:
        """Answer its request, which is then no longer parked."""
        self.parked_key = None
        self._unsent += wire.frame(bytes((status,)) + value, self._send_codes)
        self.flush()

    def _authenticate(self) -> bool:
        """Whether its hello is whole, and then authentic."""
        hello_bytes = wire.PROTOCOL.hello_bytes
        if len(self._received) < hello_bytes:
            return False
        hello = bytes(self._received[:hello_bytes])
        del self._received[:hello_bytes]
        wire.PROTOCOL.check_magic(hello)
        try:
            self._side.read_hello(hello)
        except ProtocolError:
            self._unsent += wire.PROTOCOL.refusal
            self.flush()
            raise
        self._send_codes = RecordCodes(self._side.send_key)
        self._receive_codes = RecordCodes(self._side.receive_key)
        self.is_authentic, self.deadline = True, None
        self._unsent += self._side.reply(self._instance)
        self.flush()
        return True

    def _set_deadline(self) -> None:
        if self.is_authentic and not self._received and not self._unsent:
            self.deadline = None
        elif self.deadline is None:
            self.deadline = time.monotonic() + self._io_timeout_s
