"""What an attacker on the path does to one direction of a connection: bytes in, pieces out. Pure.

A *tamper* is fed the bytes of a stream in pieces of any size. It returns what is passed on instead:
bytes, a pause, or an end of the connection. Offsets count from the first byte that it is fed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

__all__ = [
    "Changed",
    "CutOff",
    "End",
    "Messages",
    "Pause",
    "Piece",
    "Replaced",
    "Slow",
    "Tamper",
    "come_back",
    "duplicate",
    "flip",
    "patch",
    "replay",
    "swap",
]


class End(Enum):
    """How a direction ends; later bytes of its sender do not arrive."""

    CLOSE = auto()  # as if the sender had shut it down
    RESET = auto()  # both directions at once


@dataclass(frozen=True)
class Pause:
    """All later pieces wait for this time."""

    seconds: float


Piece = bytes | End | Pause


class Tamper:
    """Passes everything on. ``has_struck``: whether it has changed something."""

    has_struck = False

    def feed(self, data: bytes) -> Sequence[Piece]:
        """The pieces to pass on in place of ``data``, which is never empty."""
        return (data,)


class Changed(Tamper):
    """Changes the byte at each of these offsets."""

    def __init__(self, changes: Mapping[int, Callable[[int], int]]) -> None:
        self._changes = changes
        self._offset = 0

    def feed(self, data: bytes) -> Sequence[Piece]:
        changed = bytearray(data)
        for offset, change in self._changes.items():
            index = offset - self._offset
            if 0 <= index < len(data):
                changed[index] = change(data[index]) & 0xFF
                self.has_struck |= changed[index] != data[index]
        self._offset += len(data)
        return (bytes(changed),)


def flip(offset: int, bit: int) -> Changed:
    """Flip one bit."""
    return Changed({offset: lambda byte: byte ^ 1 << bit})


def patch(offset: int, value: int) -> Changed:
    """Write an int32 in this machine's byte order."""
    return Changed(
        {
            offset + index: lambda _, new=new: new  # type: ignore[misc]
            for index, new in enumerate(struct.pack("=i", value))
        }
    )


class CutOff(Tamper):
    """The stream ends after ``offset`` bytes."""

    def __init__(self, offset: int, end: End) -> None:
        self._left = offset
        self._end = end

    def feed(self, data: bytes) -> Sequence[Piece]:
        if self.has_struck:
            return ()
        first = data[: self._left]
        self._left -= len(first)
        if self._left > 0:
            return (first,)
        self.has_struck = True
        return (first, self._end) if first else (self._end,)


class Replaced(Tamper):
    """Replaces ``old`` by ``new`` of the same length; holds back what looks like its start.

    A byte or two at the end of a message may equal that start by chance. They are passed on: the
    ranks may send nothing more before those bytes arrive.
    """

    _LEAST = 8  # bytes that are not there by chance

    def __init__(self, old: bytes, new: bytes) -> None:
        assert len(old) == len(new) > self._LEAST
        self._old = old
        self._new = new
        self._held = b""

    def feed(self, data: bytes) -> Sequence[Piece]:
        whole = self._held + data
        self.has_struck |= self._old in whole
        whole = whole.replace(self._old, self._new)
        held = next(
            (
                size
                for size in range(min(len(self._old) - 1, len(whole)), self._LEAST - 1, -1)
                if whole.endswith(self._old[:size])
            ),
            0,
        )
        self._held = whole[len(whole) - held :]
        passed = whole[: len(whole) - held]
        return (passed,) if passed else ()


class Slow(Tamper):
    """Delays every piece by this time."""

    def __init__(self, seconds: float) -> None:
        self._pause = Pause(seconds)

    def feed(self, data: bytes) -> Sequence[Piece]:
        self.has_struck = True
        return (self._pause, data)


# (number, messages so far) -> messages to pass on in place of message ``number``.
Edit = Callable[[int, Sequence[bytes]], Sequence[bytes]]


class Messages(Tamper):
    """Messages of a control or news link go on by ``edit``, each whole with whatever protects it.

    Each is sent at once, so what comes at a time is one of them, or several.
    """

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._come: list[bytes] = []

    def feed(self, data: bytes) -> Sequence[Piece]:
        self._come.append(data)
        edited = self._edit(len(self._come) - 1, self._come)
        self.has_struck |= list(edited) != [data]
        return edited


def duplicate(number: int) -> Edit:
    """Send message ``number`` twice in a row."""
    return lambda index, come: [come[-1], come[-1]] if index == number else [come[-1]]


def replay(number: int, later: int) -> Edit:
    """Send message ``number`` in place of message ``later``."""
    return lambda index, come: [come[number] if index == later else come[-1]]


def come_back(number: int, later: int) -> Edit:
    """Send message ``number`` again after message ``later``."""
    return lambda index, come: [come[-1], come[number]] if index == later else [come[-1]]


def swap(number: int) -> Edit:
    """Swap message ``number`` with the next one, which must not depend on an answer."""

    def edit(index: int, come: Sequence[bytes]) -> Sequence[bytes]:
        if index == number:
            return []
        return [come[-1], come[-2]] if index == number + 1 else [come[-1]]

    return edit
