"""The proof exchange between an embedded agent, which listens, and its launcher, which dials. Pure.

The messages are those of ``rendezvous/base/handshake.py``, without statement and answer. Frames
(frames.py) follow, in records (``rendezvous/base/records.py``). Each side is fed with what arrives
and returns what to send. ``sealed`` hides a secret that has to follow; the other side's ``sealed``
shows it again.
"""

from __future__ import annotations

from horovod.rendezvous.base.handshake import Dialer, Listener, Protocol, ProtocolError, Side
from horovod.rendezvous.base.records import Records

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
