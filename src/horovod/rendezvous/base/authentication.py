"""Proof that a peer knows the job's secret, without sending the secret, and that a record is its.

Both ends of a connection send a fresh nonce; each then proves knowledge of the secret with an
HMAC-SHA256 (RFC 2104) over its role, both nonces and whatever else must be agreed on. Roles differ,
so an answer cannot be reflected; nonces are fresh, so it cannot be replayed. Used by the store and
by the mesh before either parses anything.

From the secret and both nonces each connection gets keys of its own, one for each direction. What
follows the handshake carries a code under that key (``RecordCodes``), so that nobody on the path
can alter, replay, reorder or drop a record in the middle without an error.
"""

from __future__ import annotations

import hmac
import os

__all__ = [
    "CODE_BYTES",
    "NONCE_BYTES",
    "PROOF_BYTES",
    "SECRET_BYTES",
    "RecordCodes",
    "derive_key",
    "is_proof",
    "new_nonce",
    "prove",
]

SECRET_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32
CODE_BYTES = 32


def new_nonce() -> bytes:
    """32 bytes that were never sent before."""
    return os.urandom(NONCE_BYTES)


def prove(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    """The proof for ``role`` over ``parts``; each part counts with its length."""
    message = b"".join(len(part).to_bytes(4, "big") + part for part in (role, *parts))
    return hmac.digest(secret, message, "sha256")


def is_proof(given: bytes, secret: bytes, role: bytes, *parts: bytes) -> bool:
    """Whether ``given`` is the proof for ``role`` over ``parts``; takes the same time if not."""
    return hmac.compare_digest(given, prove(secret, role, *parts))


def derive_key(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    """32 bytes that are a key for ``role`` alone; ``parts`` are the nonces and what was agreed on.

    The same construction as a proof: HMAC-SHA256 is the expand step of HKDF (RFC 5869) for one
    block. A role that names a key must never name a proof, since proofs are sent.
    """
    return prove(secret, b"key: " + role, *parts)


class RecordCodes:
    """Codes of the records that one end sends to the other, in order: 32 bytes each.

    A code is an HMAC-SHA256 over the record's running number and the record. Each direction of a
    connection has a key of its own (``derive_key``), and one of these objects at each end.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def next(self, *parts: bytes | memoryview) -> bytes:
        """The code of the next record, whose bytes are ``parts`` one after the other."""
        code = hmac.new(self._key, self._number.to_bytes(8, "big"), "sha256")
        self._number += 1
        for part in parts:
            code.update(part)
        return code.digest()

    def is_next(self, given: bytes, *parts: bytes | memoryview) -> bool:
        """Whether ``given`` is the code of the next record; takes the same time if not."""
        return hmac.compare_digest(given, self.next(*parts))
