"""The proof exchange between an embedded agent, which listens, and its launcher, which dials. Pure.

The messages are those of ``rendezvous/base/handshake.py``, without statement and answer. Frames
(frames.py) follow, in records. Each side is fed with what arrives and returns what to
send. ``sealed`` hides a secret that has to follow; the other side's ``sealed`` shows it again.

A record protects a connection that nothing else protects::

    length (4 bytes), its code, bytes, their code

Both codes are ``RecordCodes`` of the direction, so a record that was altered, repeated, left out or
moved is an error. An altered length is an error at once, so no side waits for bytes that it
promises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from horovod.rendezvous.base.authentication import CODE_BYTES, RecordCodes
from horovod.rendezvous.base.handshake import Dialer, Listener, Protocol, ProtocolError, Side

PROTOCOL = Protocol(b"hvdagnt3\n")


class _Handshake:
    """The common part of both sides."""

    side: Side

    def __init__(self) -> None:
        self.is_over = False
        self._received = b""

    def records(self) -> Records:
        """For what follows, once the handshake is over."""
        return Records(self.side.send_key, self.side.receive_key)

    def sealed(self, text: bytes) -> bytes:
        """``text`` under a pad of this connection: one text, of a secret's length at most."""
        pad = self.side.key(b"seal")
        assert len(text) <= len(pad)
        return bytes(one ^ other for one, other in zip(text, pad, strict=False))


class AgentHandshake(_Handshake):
    """The agent's side. It sends ``opening`` first."""

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self.side: Listener = Listener(PROTOCOL, secret)
        self.opening = self.side.opening

    def feed(self, data: bytes) -> bytes:
        """What to send now. Raises ProtocolError."""
        self._received += data
        if len(self._received) < PROTOCOL.hello_bytes:
            return b""
        self.side.read_hello(self._received)
        self.is_over = True
        return self.side.reply()


class LauncherHandshake(_Handshake):
    """The launcher's side. ``rest`` is what has arrived after the handshake."""

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self.side: Dialer = Dialer(PROTOCOL, secret)
        self.rest = b""
        self._has_sent_hello = False

    def feed(self, data: bytes) -> bytes:
        """What to send now. Raises ProtocolError."""
        self._received += data
        if not self._has_sent_hello:
            return self._answer()
        end = PROTOCOL.reply_bytes
        if len(self._received) >= end:
            self.side.read_reply(self._received[:end])
            self.is_over, self.rest = True, self._received[end:]
        return b""

    def _answer(self) -> bytes:
        if not self._received.startswith(PROTOCOL.magic[: len(self._received)]):
            raise ProtocolError("something else listens there")
        if len(self._received) < PROTOCOL.challenge_bytes:
            return b""
        challenge, self._received = self._received, b""
        self._has_sent_hello = True
        return self.side.hello(challenge)


_LENGTH = struct.Struct(">I")


class RecordError(ConnectionError):
    """The bytes that arrived are not those that the other end sent."""


class Records:
    """Both directions as one end sees them; each has its own key (``derive_key``)."""

    def __init__(self, own_key: bytes, their_key: bytes) -> None:
        self._own = RecordCodes(own_key)
        self._theirs = RecordCodes(their_key)
        self._received = bytearray()
        self._expected = -1  # bytes of the record whose length has come; -1 for none
        self._opened = 0

    def sealed(self, data: bytes) -> bytes:
        """The record of ``data``; to be sent in the order of the calls."""
        length = _LENGTH.pack(len(data))
        return b"".join((length, self._own.next(length), data, self._own.next(data)))

    def opened(self, received: bytes) -> Iterator[bytes]:
        """The contents of all records that ``received`` completes.

        Raises:
            RecordError: a code is wrong. No later record can be opened.
        """
        self._received += received
        while True:
            if self._expected < 0:
                if (length := self._take(_LENGTH.size)) is None:
                    return
                (self._expected,) = _LENGTH.unpack(length)
            if (data := self._take(self._expected)) is None:
                return
            self._expected = -1
            self._opened += 1
            yield data

    def _take(self, size_bytes: int) -> bytes | None:
        """The next bytes, once they have arrived with their code."""
        end = size_bytes + CODE_BYTES
        if len(self._received) < end:
            return None
        data, code = bytes(self._received[:size_bytes]), bytes(self._received[size_bytes:end])
        if not self._theirs.is_next(code, data):
            raise RecordError(
                f"record {self._opened + 1} of this connection has a wrong code, so it was altered "
                "on the way"
            )
        del self._received[:end]
        return data
