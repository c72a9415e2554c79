"""An agent's connection with its launcher: frames in both directions."""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Callable, Iterator

from horovod.core.base.checked import BadMessageError
from horovod.launch.wire.frames import Frame, FrameError, FrameReader, FrameWriter
from horovod.launch.wire.handshake import RecordError, Records

_READ_BYTES = 256 * 1024


class LauncherConnection:
    """``on_frame`` gets the launcher's frames, ``on_end`` is called when it has disconnected.

    ``on_altered`` gets the reason when the bytes cannot be trusted any more; all that follow are
    dropped. The connection closes the descriptors of ``open``. What is sent without a launcher is
    dropped.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[], None],
        on_altered: Callable[[str], None],
    ) -> None:
        self._selector = selector
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_altered = on_altered
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
