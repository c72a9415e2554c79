"""The failure of a rank, as it has recorded it or as its last lines of output show it. Pure.

A program in Python ends with a traceback; in others only the lines are known.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from horovod.core.base.checked import BadMessageError, Fields, printable
from horovod.errors import PeerLostError
from horovod.trace.stacks import Call, own_call

EXCEPTION = "exception"  # the reason of a recording whose detail describes one
TAIL_BYTES = 16384  # what is kept of a rank's standard error
_MOST_LINES = 20
_MOST_CHARACTERS = 300  # of a line
# Of one with an exception: JAX puts words before the cause, and names of gradients are long.
_MOST_OF_EXCEPTION = 1500
_CALL = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+)(?:, in (?P<function>.*))?')
_EXCEPTION = re.compile(r"(?P<kind>[^\W\d][\w.]*)(?:: (?P<message>.*))?")
# TensorFlow, Keras and torch begin some errors with a line that only announces the cause.
_ANNOUNCEMENT = re.compile(r".*:|Exception encountered when calling .*")
# What may stand between the two: nothing, calls and their source, nodes, headings.
_BEFORE_CAUSE = re.compile(r'\s*(?:File ".*|\[\[.*|\d+ root error\(s\) found\.|.*:)?')
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # of an error under torch.distributed
_LOST = f"{PeerLostError.__module__}.{PeerLostError.__name__}"


@dataclass(frozen=True)
class RankFailure:
    """A rank that failed: its exit code, and the last lines that it printed.

    ``kind`` is the type of the exception that ended it, ``path`` and ``line`` the innermost call of
    the program itself. They are empty if the rank has printed no traceback.
    """

    rank: int
    exit_code: int
    lines: tuple[str, ...] = ()
    kind: str = ""
    message: str = ""
    path: str = ""
    line: int = 0

    @property
    def lost_its_peer(self) -> bool:
        """Whether it failed only because another rank had ended."""
        return self.kind == _LOST

    @property
    def place(self) -> str:
        """``train.py:19``, seen from this process' folder; empty if it is not known."""
        return place_text(self.path, self.line) if self.path else ""

    @property
    def text(self) -> str:
        """``rank 1 raised ValueError: bad batch (train.py:19)``; empty without an exception."""
        where = f" ({self.place})" if self.place else ""
        message = f": {self.message}" if self.message else ""
        if self.lost_its_peer:
            return f"rank {self.rank} lost its peer{message}{where}"
        return f"rank {self.rank} raised {self.kind}{message}{where}" if self.kind else ""


def place_text(path: str, line: int) -> str:
    """``train.py:19``, by the shortest path from this process' folder."""
    near = os.path.relpath(path) if os.path.isabs(path) else path
    return f"{path if near.startswith(os.pardir) else near}:{line}"


def description_of(kind: str, message: str, call: Call | None) -> str:
    """The description of an exception for a recording; see ``described``.

    ``message`` counts with its first line and what that announces, or with the cause if it has
    another traceback.
    """
    path, line = (call.path, call.line) if call is not None else ("", 0)
    lines = _COLOUR.sub("", message).splitlines()
    inner, cause, _ = _last_exception(lines)
    message = f"{inner}: {cause}" if inner else _with_cause(lines)
    message = message[:_MOST_OF_EXCEPTION]
    return json.dumps({"kind": kind, "message": message, "path": path, "line": line})


def described(rank: int, description: str) -> RankFailure | None:
    """The failure of a rank that has recorded its exception; None if the text is damaged."""
    try:
        fields = Fields.read("exception", description)
        kind, message, path = (fields.text(name) for name in ("kind", "message", "path"))
        return RankFailure(rank, 1, (), kind, message, path, fields.integer("line"))
    except BadMessageError:
        return None


def failure_of(rank: int, exit_code: int, tail: bytes) -> RankFailure:
    """The failure of a rank whose standard error ended with ``tail``."""
    # A program may print what moves the cursor or empties the screen.
    text = _COLOUR.sub("", tail.decode(errors="replace"))
    lines = [printable(line) for line in text.splitlines()]
    kind, message, call = _last_exception(line[:_MOST_OF_EXCEPTION] for line in lines)
    return RankFailure(
        rank=rank,
        exit_code=exit_code,
        lines=tuple(line[:_MOST_CHARACTERS] for line in lines if line.strip())[-_MOST_LINES:],
        kind=kind,
        message=message,
        path=call.path if call else "",
        line=call.line if call else 0,
    )


def _last_exception(printed: Iterable[str]) -> tuple[str, str, Call | None]:
    """Type, message and place of the last traceback; empty without one."""
    found: tuple[str, str, Call | None] = ("", "", None)
    calls: list[Call] = []  # of the traceback that is being read, the innermost first
    lines = [_TORCH_PREFIX.sub("", line, count=1) for line in printed]
    for number, line in enumerate(lines):
        if match := _CALL.fullmatch(line):
            calls.insert(0, Call(match["path"], int(match["line"]), match["function"] or ""))
        elif calls and line.strip() and not line.startswith(" "):
            if match := _EXCEPTION.fullmatch(line):
                message = _with_cause([match["message"] or "", *lines[number + 1 :]])
                found = match["kind"], message, own_call(calls) or calls[0]
            calls = []
        elif line.startswith(f"{_LOST}: "):  # without a traceback: see horovod.core.uncaught
            found = _LOST, line.removeprefix(f"{_LOST}: "), None
    return found


def _with_cause(message: list[str]) -> str:
    """The first line, with the cause that it announces."""
    first, *others = message or [""]
    if not _ANNOUNCEMENT.fullmatch(first):
        return first
    is_source = False
    for line in others:
        if not is_source and not _BEFORE_CAUSE.fullmatch(line):
            return f"{first} {line.strip()}"
        is_source = line.lstrip().startswith('File "')
    return first
