"""Output of workers that is kept while no launcher takes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

_BUFFER_BYTES = 1024 * 1024
_BUFFER_LINE_BYTES = 64 * 1024

Stream = tuple[int, int]  # a worker's number; 0 or 1


class OutputBuffer:
    """Keeps at most ``max_bytes``; ``dropped_lines`` counts the oldest ones, which had to go."""

    def __init__(self, max_bytes: int = _BUFFER_BYTES) -> None:
        self.dropped_lines = 0
        self._max_bytes = max_bytes
        self._lines: deque[tuple[Stream, bytes]] = deque()
        self._partial: dict[Stream, bytes] = {}
        self._kept_bytes = 0

    def add(self, stream: Stream, data: bytes) -> None:
        """A worker has written ``data``."""
        self._kept_bytes += len(data)
        *lines, rest = (self._partial.pop(stream, b"") + data).split(b"\n")
        self._lines += [(stream, line + b"\n") for line in lines]
        if len(rest) > _BUFFER_LINE_BYTES:
            self._lines.append((stream, rest))
        elif rest:
            self._partial[stream] = rest
        while self._kept_bytes > self._max_bytes and self._lines:
            self._kept_bytes -= len(self._lines.popleft()[1])
            self.dropped_lines += 1

    def take(self) -> Iterator[tuple[Stream, bytes]]:
        """All there is, line by line, in its order; nothing of it is kept."""
        lines, partial = self._lines, self._partial
        self._lines, self._partial = deque(), {}
        self._kept_bytes = self.dropped_lines = 0
        yield from lines
        yield from partial.items()
