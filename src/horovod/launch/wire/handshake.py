"""How a launcher and an embedded agent prove that they know the job's secret; records. Pure.

    agent -> launcher   magic, nonce
    launcher -> agent   nonce, proof
    agent -> launcher   proof, then frames (``frames.py``) in records; or REFUSAL and the end

Each side is fed with what arrives and returns what to send. Nothing else is parsed before. The keys
of the records are of this handshake alone. ``sealed`` hides a secret that follows from
eavesdroppers; it also opens what it has sealed.

A record protects a connection that nothing else protects::

    length (4 bytes), its code, bytes, their code

Both codes are ``RecordCodes`` of the direction, so a record that was altered, repeated, left out or
moved is an error. An altered length is an error at once, so no side waits for bytes that it
promises.
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

REFUSAL = bytes(PROOF_BYTES)  # an agent that does not answer at all may be asked again

_MAGIC = b"hvdagent3\n"
_LAUNCHER, _AGENT, _SEAL = b"launcher", b"agent", b"seal"


class HandshakeError(ConnectionError):
    """The other side is not the expected one; the text says why."""


class AgentHandshake:
    """The agent's side. It sends ``opening`` first; ``is_over``: the launcher has proved itself."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = new_nonce()
        self._theirs = b""
        self._received = b""
        self.opening = _MAGIC + self._nonce
        self.is_over = False

    def feed(self, data: bytes) -> bytes:
        """What to send now. Raises HandshakeError."""
        self._received += data
        if len(self._received) < NONCE_BYTES + PROOF_BYTES:
            return b""
        theirs, proof = self._received[:NONCE_BYTES], self._received[NONCE_BYTES:]
        if not is_proof(proof, self._secret, _LAUNCHER, self._nonce, theirs):
            raise HandshakeError("it does not know the job's secret")
        self.is_over, self._theirs = True, theirs
        return prove(self._secret, _AGENT, self._nonce, theirs)

    def records(self) -> Records:
        """The records that follow, once the handshake is over."""
        keys = _record_keys(self._secret, self._nonce, self._theirs)
        return Records(keys[_AGENT], keys[_LAUNCHER])

    def sealed(self, text: bytes) -> bytes:
        """One text, of a secret's length at most, sealed; once the handshake is over."""
        return _sealed(text, prove(self._secret, _SEAL, self._nonce, self._theirs))


class LauncherHandshake:
    """The launcher's side. ``rest`` has the bytes after the handshake once it ``is_over``."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = new_nonce()
        self._theirs = b""
        self._received = b""
        self.rest = b""
        self.is_over = False

    def feed(self, data: bytes) -> bytes:
        """What to send now. Raises HandshakeError."""
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
            if not is_proof(proof, self._secret, _AGENT, self._theirs, self._nonce):
                raise HandshakeError("it does not know the job's secret")
            self.is_over = True
        return b""

    def records(self) -> Records:
        """See ``AgentHandshake``."""
        keys = _record_keys(self._secret, self._theirs, self._nonce)
        return Records(keys[_LAUNCHER], keys[_AGENT])

    def sealed(self, text: bytes) -> bytes:
        """See ``AgentHandshake``."""
        return _sealed(text, prove(self._secret, _SEAL, self._theirs, self._nonce))


def _record_keys(secret: bytes, agents: bytes, launchers: bytes) -> dict[bytes, bytes]:
    """The keys by sender, from both nonces."""
    return {role: derive_key(secret, role, agents, launchers) for role in (_LAUNCHER, _AGENT)}


def _sealed(text: bytes, pad: bytes) -> bytes:
    """``text`` under a pad of this handshake, which is used once."""
    assert len(text) <= len(pad)
    return bytes(one ^ other for one, other in zip(text, pad, strict=False))


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
