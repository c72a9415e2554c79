"""Options of the C library's allocator."""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1


def keep_freed_memory() -> bool:
    """Let this process keep memory that it frees, until it ends; whether the C library can do that.

    By default glibc gives large arrays back to the system, which clears their pages when the next
    step allocates them again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(*option) == 1 for option in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER)))
