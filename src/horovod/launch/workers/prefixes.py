"""What stands in front of the lines of a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

# A longer line is broken, so that a worker that never ends one cannot fill the memory.
_MAX_LINE_BYTES = 16 * 1024 * 1024
# Those of the terminal's 16 colours that are readable on black and on white.
_COLOURS = (32, 34, 35, 36, 33, 94)


def full_prefix(rank: int, stream: str) -> str:
    """The prefix of a line in files and pipes: ``[3]<stdout>:``."""
    return f"[{rank}]<{stream}>:"


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Whether the terminal shows escape sequences as they are, as a shell in Emacs does."""
    return environ.get("TERM") == "dumb"


def short_prefix(rank: int, stream: str, environ: Mapping[str, str]) -> str:
    """The prefix on a terminal: ``[3] ``, ``[3]! `` for standard error; coloured by rank.

    Without a colour if ``NO_COLOR`` is set (no-color.org), or the terminal knows none.
    """
    mark = "!" if stream == "stderr" else ""
    if environ.get("NO_COLOR") or is_dumb(environ):
        return f"[{rank}]{mark} "
    return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m[{rank}]{mark}\x1b[m "


class LinePrefixer:
    """Puts what ``prefix`` gives in front of each line; ``\\n``, ``\\r`` and ``\\r\\n`` end one.

    Bytes pass through as they are. What follows the last line's end is kept until the rest comes.
    """

    def __init__(self, prefix: Callable[[], bytes]) -> None:
        self._prefix = prefix
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._begun_prefix: bytes | None = None  # of a line that is already shown
        self._is_after_return = False

    def feed(self, data: bytes) -> bytes:
        """All lines that ``data`` completes, prefixed."""
        start = b""
        if self._is_after_return and data.startswith(b"\n"):
            # The second half of a \r\n whose first half has been written.
            start, data = b"\n", data[1:]
        if data or start:
            self._is_after_return = data.endswith(b"\r")
        if not data:
            return start
        if b"\n" not in data and b"\r" not in data:
            self._keep(data)
            return start + (self.finish() if self._partial_bytes >= _MAX_LINE_BYTES else b"")
        lines = b"".join((*self._partial, data)).splitlines(keepends=True)
        prefix = self._prefix()
        first, self._begun_prefix = self._begun_prefix or prefix, None
        self._partial, self._partial_bytes = [], 0
        if not lines[-1].endswith((b"\n", b"\r")):
            self._keep(lines.pop())
        return start + first + prefix.join(lines)

    def finish(self) -> bytes:
        """The line that was begun, with the end it lacks."""
        if not self._partial:
            return b""
        line = self.begun() + b"\n"
        self._begun_prefix = None
        self._partial, self._partial_bytes = [], 0
        return line

    @property
    def is_begun(self) -> bool:
        """Whether a line has begun and has no end yet."""
        return bool(self._partial)

    def begun(self) -> bytes:
        """The line that was begun and has no end yet, prefixed; it stays begun."""
        if not self._partial:
            return b""
        if self._begun_prefix is None:
            self._begun_prefix = self._prefix()
        return self._begun_prefix + b"".join(self._partial)

    def _keep(self, data: bytes) -> None:
        self._partial.append(data)
        self._partial_bytes += len(data)


def timestamped(prefix: bytes) -> bytes:
    """``prefix`` after the local time, to the millisecond."""
    return f"{datetime.now():%Y-%m-%d %H:%M:%S.%f}"[:-3].encode() + b" " + prefix
