"""The proof exchange: both ends of a connection show that they know the job's secret. Pure.

    listener -> dialer   challenge   magic, nonce
    dialer -> listener   hello       magic, nonce, statement, proof as dialer
    listener -> dialer   reply       answer, proof as listener; or zeros: the proof was refused

A proof is an HMAC-SHA256 under the secret over the role and the transcript: the magic, both nonces,
the statement and, for the listener, the answer. Roles differ, so a proof cannot be reflected.
Nonces are fresh, so it cannot be replayed. The magic names the protocol and its version, so it
cannot be used elsewhere. Each message has a length that is known in advance, and nothing in it is
interpreted before its proof holds. The comparison takes the same time for every proof.

What follows is protected with keys that come from the secret and the transcript (``Side.key``).
The store, the ranks of one host, links between hosts and embedded agents use this exchange.
"""

from __future__ import annotations

import os
from typing import ClassVar, NamedTuple

from horovod.rendezvous.base.authentication import PROOF_BYTES, derive_key, is_proof, prove

_NONCE_BYTES = 32
_DIALER, _LISTENER = b"horovod dialer", b"horovod listener"
_NOT_PROVEN = "it does not know the job's secret"


class ProtocolError(Exception):
    """The peer sent what the protocol does not allow now, or a proof that does not hold."""


class RefusedError(ProtocolError):
    """The listener has refused the proof of this process."""


class Protocol(NamedTuple):
    """The lengths of one kind of connection. ``magic`` ends with its version."""

    magic: bytes
    statement_bytes: int = 0
    answer_bytes: int = 0

    @property
    def challenge_bytes(self) -> int:
        """Length of the first message."""
        return len(self.magic) + _NONCE_BYTES

    @property
    def hello_bytes(self) -> int:
        """Length of the second message."""
        return self.challenge_bytes + self.statement_bytes + PROOF_BYTES

    @property
    def reply_bytes(self) -> int:
        """Length of the third message."""
        return self.answer_bytes + PROOF_BYTES

    @property
    def refusal(self) -> bytes:
        """In place of the reply, so that a dialer with another secret does not try again."""
        return bytes(self.reply_bytes)

    def check_magic(self, message: bytes) -> None:
        """ProtocolError for a message that does not begin as one of this protocol."""
        if not message.startswith(self.magic):
            raise ProtocolError("it does not speak this protocol")


class Side:
    """One end of a connection."""

    _sends: ClassVar[bytes]
    _receives: ClassVar[bytes]

    def __init__(self, protocol: Protocol, secret: bytes) -> None:
        self.protocol = protocol
        self._secret = secret
        self._nonce = os.urandom(_NONCE_BYTES)
        self._transcript: tuple[bytes, ...] = ()

    @property
    def opening(self) -> bytes:
        """Magic and nonce: the challenge, and the beginning of the hello."""
        return self.protocol.magic + self._nonce

    def key(self, label: bytes) -> bytes:
        """A key of this connection alone for ``label``. ProtocolError before the hello."""
        if not self._transcript:
            raise ProtocolError("it sent something protected before the proofs")
        return derive_key(self._secret, label, *self._transcript)

    @property
    def send_key(self) -> bytes:
        """The key for what this end sends; the other end's ``receive_key``."""
        return self.key(self._sends)

    @property
    def receive_key(self) -> bytes:
        """The key for what this end receives."""
        return self.key(self._receives)

    def _split(self, message: bytes, expected_bytes: int) -> tuple[bytes, bytes]:
        if len(message) != expected_bytes:
            raise ProtocolError(f"a message of {len(message)} bytes, expected {expected_bytes}")
        return message[:-PROOF_BYTES], message[-PROOF_BYTES:]


class Listener(Side):
    """The end that was connected to."""

    _sends, _receives = _LISTENER, _DIALER

    def read_hello(self, message: bytes) -> bytes:
        """The statement of the dialer, whose proof holds. Raises ProtocolError."""
        self.protocol.check_magic(message)
        stated, proof = self._split(message, self.protocol.hello_bytes)
        at = self.protocol.challenge_bytes
        nonce, statement = stated[len(self.protocol.magic) : at], stated[at:]
        transcript = (self.protocol.magic, self._nonce, nonce, statement)
        if not is_proof(proof, self._secret, _DIALER, *transcript):
            raise ProtocolError(_NOT_PROVEN)
        self._transcript = transcript
        return statement

    def reply(self, answer: bytes = b"") -> bytes:
        """The third message, after the hello."""
        assert self._transcript
        return answer + prove(self._secret, _LISTENER, *self._transcript, answer)


class Dialer(Side):
    """The end that connected."""

    _sends, _receives = _DIALER, _LISTENER

    def hello(self, challenge: bytes, statement: bytes = b"") -> bytes:
        """The second message. Raises ProtocolError for a challenge of another protocol."""
        self.protocol.check_magic(challenge)
        if len(challenge) != self.protocol.challenge_bytes:
            raise ProtocolError(f"a challenge of {len(challenge)} bytes")
        nonce = challenge[len(self.protocol.magic) :]
        self._transcript = (self.protocol.magic, nonce, self._nonce, statement)
        return self.opening + statement + prove(self._secret, _DIALER, *self._transcript)

    def read_reply(self, message: bytes) -> bytes:
        """The answer of the listener, whose proof holds. Raises ProtocolError, RefusedError."""
        assert self._transcript
        if message == self.protocol.refusal:
            raise RefusedError(_NOT_PROVEN)
        answer, proof = self._split(message, self.protocol.reply_bytes)
        if not is_proof(proof, self._secret, _LISTENER, *self._transcript, answer):
            raise ProtocolError(_NOT_PROVEN)
        return answer
