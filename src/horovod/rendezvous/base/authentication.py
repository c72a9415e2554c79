"""Proofs, keys and record codes from the job's secret, which is never sent.

A proof is an HMAC-SHA256 (RFC 2104) over a role and what must be agreed on; ``handshake.py`` is the
exchange that uses it. After the exchange each direction of a connection has a key of its own. Each
record carries a code under that key (``RecordCodes``). A record that was altered, replayed,
reordered or left out is then an error.
"""

from __future__ import annotations

import hmac

SECRET_BYTES = 32
PROOF_BYTES = 32
CODE_BYTES = 32


def prove(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    """The proof for ``role`` over ``parts``. The length of each part is part of the proof."""
    message = b"".join(len(part).to_bytes(4, "big") + part for part in (role, *parts))
    return hmac.digest(secret, message, "sha256")


def is_proof(given: bytes, secret: bytes, role: bytes, *parts: bytes) -> bool:
    """Whether ``given`` is the proof for ``role`` over ``parts``; in constant time."""
    return hmac.compare_digest(given, prove(secret, role, *parts))


def derive_key(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    """A key of 32 bytes for ``role`` alone; ``parts`` are the nonces and what was agreed on.

    HMAC-SHA256 is the expand step of HKDF (RFC 5869) for one block. Proofs are sent and keys are
    not, so the prefix keeps the roles of keys and proofs apart.
    """
    return prove(secret, b"key: " + role, *parts)


class RecordCodes:
    """Codes of the records of one direction, in order: 32 bytes each.

    A code is an HMAC-SHA256 over the record's running number and the record. Each end has one of
    these objects for each direction, whose key comes from ``derive_key``.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def next(self, *parts: bytes | memoryview) -> bytes:
        """The code of the next record, which is ``parts`` one after the other."""
        code = hmac.new(self._key, self._number.to_bytes(8, "big"), "sha256")
        self._number += 1
        for part in parts:
            code.update(part)
        return code.digest()

    def is_next(self, given: bytes, *parts: bytes | memoryview) -> bool:
        """Whether ``given`` is the code of the next record; in constant time."""
        return hmac.compare_digest(given, self.next(*parts))
