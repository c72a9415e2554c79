"""Proof that a peer knows the job's secret, without sending the secret.

Both ends of a connection send a fresh nonce; each then proves knowledge of the secret with an
HMAC-SHA256 (RFC 2104) over its role, both nonces and whatever else must be agreed on. Roles differ,
so an answer cannot be reflected; nonces are fresh, so it cannot be replayed. Used by the store and
by the mesh before either parses anything.
"""

from __future__ import annotations

import hmac
import os

__all__ = ["NONCE_BYTES", "PROOF_BYTES", "SECRET_BYTES", "is_proof", "new_nonce", "prove"]

SECRET_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32


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
