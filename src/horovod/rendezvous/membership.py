"""What a rank holds once all ranks have met, and the clock that they share while they meet."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Deadline", "Mesh", "close_all", "ranks_text"]


@dataclass(frozen=True)
class Mesh:
    """The result of a rendezvous on one host; every tuple is indexed by rank.

    ``region_fd`` is shared memory of the agreed size, zeroed. ``pidfds`` become readable when that
    process ends; -1 for this rank itself and where the system gives none. All descriptors are
    close-on-exec and belong to the caller; ``close`` ends them if nothing else took them over.
    """

    region_fd: int
    pidfds: tuple[int, ...]
    pids: tuple[int, ...]

    def close(self) -> None:
        """Close every descriptor; call it once, and not if an engine owns them."""
        close_all((self.region_fd, *self.pidfds))


class Deadline:
    """A point in time, ``timeout_s`` after construction."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._at = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Seconds that are left; 0 when it has passed."""
        return max(0.0, self._at - time.monotonic())


def close_all(fds: Iterable[int]) -> None:
    """Close the descriptors that are not -1."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 2, 3``, or with many of them the first ones and how many more."""
    ordered = sorted(ranks)
    shown = ", ".join(map(str, ordered[:16]))
    more = f" and {len(ordered) - 16} more" if len(ordered) > 16 else ""
    return f"rank{'s' if len(ordered) > 1 else ''} {shown}{more}"
