"""An agent's connection with its launcher: frames in both directions.

``OutputBuffer`` keeps the output of workers while no launcher takes it.
"""

from __future__ import annotations

import os
import selectors
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from horovod.core.base.checked import BadMessageError
from horovod.launch.wire.frames import Frame, FrameError, FrameReader, FrameWriter
from horovod.rendezvous.base.records import RecordError, Records

_READ_BYTES = 256 * 1024


@dataclass(eq=False, repr=False)
class LauncherConnection:
    """``on_frame`` gets the launcher's frames, ``on_end`` is called when it has disconnected.

    ``on_altered`` gets the reason when the bytes cannot be trusted any more; all that follow are
    dropped. The connection closes the descriptors of ``open``. What is sent without a launcher is
    dropped.
    """

    _selector: selectors.BaseSelector
    _on_frame: Callable[[Frame], None]
    _on_end: Callable[[], None]
    _on_altered: Callable[[str], None]

    def __post_init__(self) -> None:
        self._records: Records | None = None
        self._is_altered = False
        self._writer: FrameWriter | None = None
        self._reader = FrameReader()
        self._orders_fd = self._reports_fd = -1

    @property
    def is_open(self) -> bool:
        """Whether a launcher is connected, as far as is known."""
        return self._writer is not None

    def open(self, orders_fd: int, reports_fd: int, records: Records | None = None) -> None:
        """Read orders from one descriptor and send reports to the other.

        Both are in ``records`` where nothing else protects the connection.

        Raises:
            PermissionError: a selector cannot wait for ``orders_fd``.
        """
        self.close()
        self._selector.register(orders_fd, selectors.EVENT_READ, self._read)
        self._orders_fd, self._reports_fd = orders_fd, reports_fd
        self._reader = FrameReader()
        self._records, self._is_altered = records, False
        sealed = bytes if records is None else records.sealed
        self._writer = FrameWriter(reports_fd, self._selector, sealed)

    def send(self, frame: bytes) -> None:
        """See ``FrameWriter``."""
        if self._writer is not None:
            self._writer.send(frame)

    def send_from(self, source: Iterator[bytes]) -> None:
        """See ``FrameWriter``."""
        if self._writer is not None:
            self._writer.send_from(source)

    def balance(self) -> None:
        """Called in every turn of a loop."""
        if self._writer is not None:
            self._writer.refill()
            if self._writer.is_broken:
                self._end()

    def close(self) -> None:
        """Disconnect; may be repeated."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        self._selector.unregister(self._orders_fd)
        for fd in (self._orders_fd, self._reports_fd):
            os.close(fd)

    def _end(self) -> None:
        self.close()
        self._on_end()

    def _read(self) -> None:
        if self._writer is None:  # closed by a callback before
            return
        try:
            data = os.read(self._orders_fd, _READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self._end()
            return
        try:
            self._hear(data)
        except RecordError as error:
            self._is_altered = True
            self._on_altered(str(error))
        except (FrameError, BadMessageError) as error:
            sys.stderr.write(f"horovodrun's agent: the launcher has sent {error}\n")
            self._end()

    def _hear(self, data: bytes) -> None:
        if self._is_altered:
            return
        reader, records = self._reader, self._records
        for piece in (data,) if records is None else records.opened(data):
            for frame in reader.feed(piece):
                self._on_frame(frame)


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
