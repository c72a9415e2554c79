"""The import path for keys and digests; the code is in ``horovod.launch.compat``."""

from horovod.launch.compat.secrets import (
    DIGEST_LENGTH,
    HOROVOD_SECRET_KEY,
    check_digest,
    compute_digest,
    make_secret_key,
)

__all__ = [
    "DIGEST_LENGTH",
    "HOROVOD_SECRET_KEY",
    "check_digest",
    "compute_digest",
    "make_secret_key",
]
