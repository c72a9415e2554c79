"""The sending side of a stream of frames, for a loop that must not block.

What is small is sent at once and waits in memory; what is large comes from a source that is asked
for its next frame when little is waiting. So an order to end overtakes a call of gigabytes.
"""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable, Iterator

from horovod.launch.workers.output import Console

__all__ = ["FrameWriter"]

_LOW_WATER_BYTES = 256 * 1024


class FrameWriter:
    """Writes encoded frames to ``fd`` as its reader takes them, each ``sealed`` before."""

    def __init__(
        self,
        fd: int,
        selector: selectors.BaseSelector,
        sealed: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._console = Console(fd, selector)
        self._sealed = sealed
        self._sources: deque[Iterator[bytes]] = deque()

    @property
    def is_broken(self) -> bool:
        """Whether nobody reads any more."""
        return self._console.is_broken

    def send(self, frame: bytes) -> None:
        """Send ``frame`` before everything that is still in a source."""
        self._console.write(self._sealed(frame))

    def send_from(self, source: Iterator[bytes]) -> None:
        """Send the frames of ``source`` after those of earlier sources, as they are taken."""
        self._sources.append(source)
        self.refill()

    def refill(self) -> None:
        """Ask the sources for more if little is waiting; to be called in every turn of a loop."""
        while self._sources and self._console.waiting_bytes < _LOW_WATER_BYTES:
            frame = next(self._sources[0], None)
            if frame is None:
                self._sources.popleft()
            else:
                self._console.write(self._sealed(frame))

    def flush(self) -> None:
        """Send everything, blocking."""
        while self._sources and not self.is_broken:
            self._console.flush()
            self.refill()
        self._console.flush()

    def close(self) -> None:
        """Drop what has not been sent and forget the descriptor, which stays open."""
        self._sources.clear()
        self._console.abandon()
