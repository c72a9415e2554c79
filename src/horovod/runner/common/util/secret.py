"""Keys and message codes (HMAC), which other launchers use between their own processes."""

from __future__ import annotations

import hmac
import os

from horovod.rendezvous.base.authentication import CODE_BYTES, SECRET_BYTES

__all__ = [
    "DIGEST_LENGTH",
    "HOROVOD_SECRET_KEY",
    "check_digest",
    "compute_digest",
    "make_secret_key",
]

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH = CODE_BYTES


def make_secret_key() -> bytes:
    """32 random bytes; as ``_HOROVOD_SECRET_KEY`` in base64 they are a job's secret."""
    return os.urandom(SECRET_BYTES)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 of ``message``."""
    return hmac.digest(key, message, "sha256")


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Whether ``digest`` belongs to ``message``; compared in constant time."""
    return hmac.compare_digest(digest, compute_digest(key, message))
