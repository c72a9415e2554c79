"""Workers' output on its way to the console: prefixed, whole lines, nothing lost.

``LinePrefixer`` is pure, ``Lines`` take one stream of one worker. ``Console`` writes only when the
terminal, pipe or file takes more, so a slow one never keeps the launcher from watching its workers.
Once much is waiting, ``Output`` stops reading and the workers wait. All run on the main thread, in
its selector.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from horovod.launch.workers.prefixes import LinePrefixer, timestamped

if TYPE_CHECKING:
    from horovod.launch.workers.logs import LogFile

_READ_BYTES = 65536
_COLUMNS = 80  # of a terminal that does not tell its width
_ERASE_LINE, _DIM, _PLAIN = b"\r\x1b[K", b"\x1b[2m", b"\x1b[m"
_BEGUN_S = 0.2
_HIGH_WATER_BYTES = 1024 * 1024
_LOW_WATER_BYTES = 256 * 1024
# A pipe that polls as writable takes this much without blocking (pipe(7)).
_WRITE_BYTES = select.PIPE_BUF
# The most that a dead worker can have left in its pipe; more comes from a process of its own.
_MAX_LEFT_BYTES = 1024 * 1024


class Console:
    """One place that the launcher writes to; ``is_broken`` once no process reads there.

    On a terminal, a line that has no end after ``_BEGUN_S`` is shown, so that prompts appear.
    """

    def __init__(self, fd: int, selector: selectors.BaseSelector) -> None:
        self._fd = fd
        self.is_terminal = os.isatty(fd)
        self._has_status = False  # in the line of the cursor
        self._begun: dict[Lines, float] = {}  # lines without an end, and when to show them
        self._open: Lines | None = None  # whose begun line the cursor is in
        self._selector = selector
        self._waiting = bytearray()
        self._is_registered = False
        self.is_broken = False
        self.problem = ""  # why it is broken

    @property
    def waiting_bytes(self) -> int:
        """The bytes that were taken and not written yet."""
        return len(self._waiting)

    def write(self, data: bytes, of: Lines | None = None) -> None:
        """Take ``data``. It is written when the selector says so; to files at once."""
        if not data or self.is_broken:
            return
        if self._open not in (None, of):
            self._waiting += b"\n"
        self._open = None
        self.hide_status()
        self._take(data)

    def show_status(self, text: str) -> None:
        """Show a line that the next output replaces, unless the cursor is in a begun line."""
        if self._open is None and not self._waiting and not self.is_broken:
            self.hide_status()
            width = _COLUMNS
            with contextlib.suppress(OSError):  # the terminal has hung up
                width = os.get_terminal_size(self._fd).columns or _COLUMNS
            self._take(_DIM + _shortened(text, width - 1).encode() + _PLAIN)
            self._has_status = True

    def hide_status(self) -> None:
        """Make room where a status line is."""
        if self._has_status:
            self._waiting += _ERASE_LINE
        self._has_status = False

    def _take(self, data: bytes) -> None:
        self._waiting += data
        if not self._is_registered:
            try:
                self._selector.register(self._fd, selectors.EVENT_WRITE, self.on_writable)
                self._is_registered = True
            except PermissionError:  # a regular file: always ready, not known to epoll
                self.flush()

    def is_open_for(self, lines: Lines) -> bool:
        """Whether the cursor is at the end of what these lines have begun."""
        return self._open is lines

    def note_begun(self, lines: Lines, is_begun: bool) -> None:
        """Show a begun line in a while, on a terminal."""
        if not is_begun:
            self._begun.pop(lines, None)
        elif self.is_terminal:
            self._begun.setdefault(lines, time.monotonic() + _BEGUN_S)

    @property
    def deadline(self) -> float | None:
        """When ``show_begun`` has something to do."""
        return min(self._begun.values(), default=None)

    def show_begun(self) -> None:
        """Show the begun lines that are due."""
        now = time.monotonic()
        for lines in [lines for lines, due in self._begun.items() if due <= now]:
            del self._begun[lines]
            self.write(lines.begun(), lines)
            self._open = lines

    def on_writable(self) -> None:
        """Write what is taken without blocking."""
        if not self._is_registered:  # closed by a callback before
            return
        self._write_some()
        if not self._waiting:
            self.flush()

    def flush(self) -> None:
        """Write everything, blocking."""
        while self._waiting:
            self._write_some()
        if self._is_registered:
            self._selector.unregister(self._fd)
            self._is_registered = False

    def abandon(self) -> None:
        """Drop what is waiting and take nothing more."""
        self.is_broken = True
        self._waiting.clear()
        self.flush()

    def _write_some(self) -> None:
        try:
            # Another process may have made the shared terminal non-blocking; then wait here.
            with memoryview(self._waiting) as waiting:
                written = os.write(self._fd, waiting[:_WRITE_BYTES])
            del self._waiting[:written]
        except BlockingIOError:
            select.select([], [self._fd], [])
        except OSError as error:  # EPIPE, EIO from a terminal that has hung up, or a full disk
            self.is_broken = True
            self.problem = "the reader of the output has closed it"
            if error.errno not in (errno.EPIPE, errno.EIO):
                self.problem = f"the output cannot be written: {error.strerror}"
            self._waiting.clear()


def consoles(selector: selectors.BaseSelector) -> tuple[Console, Console]:
    """Standard output and error; one and the same object if both go to one place."""
    out, err = os.fstat(1), os.fstat(2)
    stdout = Console(1, selector)
    if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino):
        return stdout, stdout
    return stdout, Console(2, selector)


def _shortened(text: str, width: int) -> str:
    """``text``, or as many of its parts between commas as fit."""
    if len(text) <= width:
        return text
    return text[: width + 2].rpartition(", ")[0] or text[:width]


class Sink(Protocol):
    """Where one stream of one worker goes."""

    @property
    def waiting_bytes(self) -> int:
        """The bytes that wait, of this stream or of all streams with the same target."""

    def feed(self, data: bytes) -> None:
        """Take ``data``; never blocks."""

    def flush(self) -> None:
        """Block until less is waiting, if that helps."""

    def close(self) -> None:
        """The stream has ended."""


@dataclass(eq=False)
class Feed:
    """A ``Sink`` that gives the data to ``feed`` as it comes."""

    feed: Callable[[bytes], None]
    waiting_bytes = 0

    def flush(self) -> None:
        """See ``Sink``."""

    def close(self) -> None:
        """See ``Sink``."""


class Lines:
    """A stream as whole lines with a prefix: to ``console``, and into ``log``.

    ``prefix`` is called for every line, since the rank of an elastic job's worker may change.
    ``log_prefix`` is that of the log, if it differs. Lines begin with the time if
    ``is_timestamped``. ``watcher`` gets the data as it comes.
    """

    def __init__(
        self,
        prefix: Callable[[], str],
        console: Console,
        log: LogFile | None = None,
        *,
        is_timestamped: bool = False,
        log_prefix: Callable[[], str] | None = None,
        watcher: Callable[[bytes], None] | None = None,
    ) -> None:
        decorate = timestamped if is_timestamped else bytes
        self._prefixer = LinePrefixer(lambda: decorate(prefix().encode()))
        self._log_prefixer = None
        if log is not None and log_prefix is not None:
            self._log_prefixer = LinePrefixer(lambda: decorate(log_prefix().encode()))
        self._console = console
        self._log = log
        self._shown_bytes = 0  # of the begun line
        self._watcher = watcher

    @property
    def waiting_bytes(self) -> int:
        """See ``Sink``."""
        return self._console.waiting_bytes

    def feed(self, data: bytes) -> None:
        """See ``Sink``."""
        if self._watcher is not None:
            self._watcher(data)
        self._show(self._prefixer.feed(data))
        if self._log is not None and self._log_prefixer is not None:
            self._log.write(self._log_prefixer.feed(data))
        self._console.note_begun(self, self._prefixer.is_begun)

    def begun(self) -> bytes:
        """The new part of the begun line; all of it after a line of another stream."""
        text = self._prefixer.begun()
        shown, self._shown_bytes = self._shown_bytes, len(text)
        return text[shown:] if self._console.is_open_for(self) else text

    def flush(self) -> None:
        """See ``Sink``."""
        self._console.flush()

    def close(self) -> None:
        """See ``Sink``; may be repeated."""
        self._show(self._prefixer.finish())
        self._console.note_begun(self, False)
        if self._log is not None:
            if self._log_prefixer is not None:
                self._log.write(self._log_prefixer.finish())
            self._log.close()

    def _show(self, lines: bytes) -> None:
        if not lines:
            return
        shown = self._shown_bytes if self._console.is_open_for(self) else 0
        self._shown_bytes = 0
        self._console.write(lines[shown:], self)
        if self._log is not None and self._log_prefixer is None:
            self._log.write(lines)


@dataclass(eq=False)
class _Pipe:
    fd: int
    sink: Sink
    is_registered: bool = False


class Output:
    """Reads workers' pipes through ``selector``, whose keys carry what to call."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._pipes: set[_Pipe] = set()

    def add(self, fd: int, prefix: str, console: Console, log: LogFile | None = None) -> None:
        """Read ``fd``, a pipe's read end; its lines go to ``console`` and to ``log``."""
        self.forward(fd, Lines(lambda: prefix, console, log))

    def forward(self, fd: int, sink: Sink) -> None:
        """Read ``fd``, a pipe's read end; the data goes to ``sink``."""
        os.set_blocking(fd, False)
        pipe = _Pipe(fd, sink)
        self._pipes.add(pipe)
        self._resume(pipe)

    def balance(self) -> None:
        """Stop reading for sinks that lag behind, resume for those that have caught up."""
        for pipe in self._pipes:
            waiting = pipe.sink.waiting_bytes
            if pipe.is_registered and waiting > _HIGH_WATER_BYTES:
                self._pause(pipe)
            elif not pipe.is_registered and waiting < _LOW_WATER_BYTES:
                self._resume(pipe)

    def drain(self) -> None:
        """Read what is left and close all pipes, even if a process still holds them open."""
        for pipe in list(self._pipes):
            self._finish(pipe, may_block=True)

    def abandon(self) -> None:
        """Close all pipes, whatever is in them."""
        for pipe in list(self._pipes):
            self._close(pipe)

    def finish(self, sinks: Collection[Sink]) -> None:
        """Read what is left for ``sinks`` and close their pipes; never blocks.

        The data is kept in memory, so this is for few sinks.
        """
        for pipe in [pipe for pipe in self._pipes if pipe.sink in sinks]:
            self._finish(pipe)

    def _finish(self, pipe: _Pipe, *, may_block: bool = False) -> None:
        left = _MAX_LEFT_BYTES
        while left > 0 and pipe in self._pipes:
            count = self._read(pipe)
            left = left - count if count else 0
            if may_block and pipe.sink.waiting_bytes > _HIGH_WATER_BYTES:
                pipe.sink.flush()
        if pipe in self._pipes:
            self._close(pipe)

    def _read(self, pipe: _Pipe) -> int:
        """The number of bytes read; 0 for none now or at the end."""
        if pipe not in self._pipes:  # closed by a callback before
            return 0
        try:
            data = os.read(pipe.fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._close(pipe)
        else:
            pipe.sink.feed(data)
        return len(data)

    def _resume(self, pipe: _Pipe) -> None:
        self._selector.register(pipe.fd, selectors.EVENT_READ, lambda: self._read(pipe))
        pipe.is_registered = True

    def _pause(self, pipe: _Pipe) -> None:
        self._selector.unregister(pipe.fd)
        pipe.is_registered = False

    def _close(self, pipe: _Pipe) -> None:
        pipe.sink.close()
        if pipe.is_registered:
            self._pause(pipe)
        self._pipes.discard(pipe)
        with contextlib.suppress(OSError):
            os.close(pipe.fd)
