"""How a launcher and a guest show each other that they know the job's secret. Pure.

    guest -> launcher   magic, nonce
    launcher -> guest   nonce, proof
    guest -> launcher   proof; frames follow (frames.py), in records (records.py); or REFUSAL, and
                        the end

Each side is fed with what comes and says what to send; nothing else is parsed before. The keys of
the records are of this greeting alone. ``sealed`` hides a secret that has to follow, from whoever
listens; it opens what it has sealed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from horovod.rendezvous.base.authentication import (
    CODE_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    RecordCodes,
    derive_key,
    is_proof,
    new_nonce,
    prove,
)

__all__ = [
    "REFUSAL",
    "AgentHandshake",
    "HandshakeError",
    "LauncherHandshake",
    "RecordError",
    "Records",
]

REFUSAL = bytes(PROOF_BYTES)  # no proof, and so an answer: who gets none may come again

_MAGIC = b"hvdguest2\n"
_LAUNCHER, _GUEST, _SEAL = b"launcher", b"guest", b"seal"


class HandshakeError(ConnectionError):
    """Who is there is not who was expected; the text says why."""


class AgentHandshake:
    """The guest's side: ``opening`` goes first; ``is_over`` once the launcher has proved itself."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = new_nonce()
        self._theirs = b""
        self._received = b""
        self.opening = _MAGIC + self._nonce
        self.is_over = False

    def feed(self, data: bytes) -> bytes:
        """What to send now. Raises GreetingError."""
        self._received += data
        if len(self._received) < NONCE_BYTES + PROOF_BYTES:
            return b""
        theirs, proof = self._received[:NONCE_BYTES], self._received[NONCE_BYTES:]
        if not is_proof(proof, self._secret, _LAUNCHER, self._nonce, theirs):
            raise HandshakeError("it does not know the job's secret")
        self.is_over, self._theirs = True, theirs
        return prove(self._secret, _GUEST, self._nonce, theirs)

    def records(self) -> Records:
        """For what follows, once the greeting is over."""
        keys = _record_keys(self._secret, self._nonce, self._theirs)
        return Records(keys[_GUEST], keys[_LAUNCHER])

    def sealed(self, text: bytes) -> bytes:
        """Once the greeting is over; one text, of a secret's length at most."""
        return _sealed(text, prove(self._secret, _SEAL, self._nonce, self._theirs))


class LauncherHandshake:
    """The launcher's side. ``rest`` is what has come behind the greeting once that ``is_over``."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = new_nonce()
        self._theirs = b""
        self._received = b""
        self.rest = b""
        self.is_over = False

    def feed(self, data: bytes) -> bytes:
        """What to send now. Raises GreetingError."""
        self._received += data
        return self._check_proof() if self._theirs else self._answer()

    def _answer(self) -> bytes:
        if not self._received.startswith(_MAGIC[: len(self._received)]):
            raise HandshakeError("something else listens there")
        if len(self._received) < len(_MAGIC) + NONCE_BYTES:
            return b""
        self._theirs, self._received = self._received[len(_MAGIC) :], b""
        return self._nonce + prove(self._secret, _LAUNCHER, self._theirs, self._nonce)

    def _check_proof(self) -> bytes:
        if len(self._received) >= PROOF_BYTES:
            proof, self.rest = self._received[:PROOF_BYTES], self._received[PROOF_BYTES:]
            if not is_proof(proof, self._secret, _GUEST, self._theirs, self._nonce):
                raise HandshakeError("it does not know the job's secret")
            self.is_over = True
        return b""

    def records(self) -> Records:
        """See ``AgentHandshake``."""
        keys = _record_keys(self._secret, self._theirs, self._nonce)
        return Records(keys[_LAUNCHER], keys[_GUEST])

    def sealed(self, text: bytes) -> bytes:
        """See ``AgentHandshake``."""
        return _sealed(text, prove(self._secret, _SEAL, self._theirs, self._nonce))


def _record_keys(secret: bytes, agents: bytes, launchers: bytes) -> dict[bytes, bytes]:
    """By sender, from both nonces."""
    return {role: derive_key(secret, role, agents, launchers) for role in (_LAUNCHER, _GUEST)}


def _sealed(text: bytes, pad: bytes) -> bytes:
    """The pad is of this greeting alone, and used once."""
    assert len(text) <= len(pad)
    return bytes(one ^ other for one, other in zip(text, pad, strict=False))


_LENGTH = struct.Struct(">I")


class RecordError(ConnectionError):
    """What has come is not what the other end has sent."""


class Records:
    """Both directions as one end sees them; each has a key of its own (``derive_key``)."""

    def __init__(self, own_key: bytes, their_key: bytes) -> None:
        self._own = RecordCodes(own_key)
        self._theirs = RecordCodes(their_key)
        self._received = bytearray()
        self._expected = -1  # bytes of the record whose length has come; -1 for none
        self._opened = 0

    def sealed(self, data: bytes) -> bytes:
        """``data`` as it travels; to be sent in the order in which it was sealed."""
        length = _LENGTH.pack(len(data))
        return b"".join((length, self._own.next(length), data, self._own.next(data)))

    def opened(self, received: bytes) -> Iterator[bytes]:
        """The contents of all records that ``received`` completes.

        Raises:
            RecordError: a code is wrong. Nothing that comes later can be opened.
        """
        self._received += received
        while True:
            if self._expected < 0:
                length = self._take(_LENGTH.size)
                if length is None:
                    return
                (self._expected,) = _LENGTH.unpack(length)
            data = self._take(self._expected)
            if data is None:
                return
            self._expected = -1
            self._opened += 1
            yield data

    def _take(self, size_bytes: int) -> bytes | None:
        """The next bytes, once they are there with their code."""
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
