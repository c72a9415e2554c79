"""The shared memory that all ranks of a host map. It has no name, so nothing is left behind.

Local rank 0 makes it and sends the descriptor to the other ranks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from horovod.errors import InitError

_SHM = "/dev/shm"
_CLAIMED_BYTES = 192 * 1024 * 1024


def make_region(size_bytes: int) -> int:
    """A descriptor of ``size_bytes`` of zeroed, sparse shared memory, close-on-exec.

    The caller closes it.

    Raises:
        InitError: neither an anonymous region nor a file in /dev/shm could be made.
    """
    try:
        return _anonymous(size_bytes)
    except (OSError, AttributeError) as first:  # refused by a sandbox, or not Linux
        try:
            return _unlinked_file(size_bytes)
        except OSError as second:
            raise InitError(
                f"init: cannot make {size_bytes} bytes of shared memory: memfd_create: {first}; "
                f"file in {_SHM}: {second}"
            ) from None


def _anonymous(size_bytes: int) -> int:
    fd = os.memfd_create("horovod", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    # Without seals a process could shrink it under a mapping (SIGBUS). A sandbox may forbid them.
    with contextlib.suppress(OSError):
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _unlinked_file(size_bytes: int) -> int:
    path = f"{_SHM}/horovod-{os.urandom(16).hex()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        os.unlink(path)
        os.ftruncate(fd, size_bytes)
        # Allocate it now: a small /dev/shm is an error here instead of SIGBUS later.
        os.posix_fallocate(fd, 0, min(size_bytes, _CLAIMED_BYTES))
    except BaseException:
        os.close(fd)
        raise
    return fd
