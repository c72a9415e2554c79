"""Messages between a launcher and its agent on another host, over one ssh connection.

Each direction is a stream of frames: kind, stream, worker, length, payload. The agent's stream
begins with a magic word, since login scripts may print something first. Frames are neither secret
nor authenticated by themselves; ssh does both. Payloads are JSON, plain bytes or numbers, never
pickled objects.

``FrameWriter`` is for a loop that must not block. Small frames are sent at once and wait in memory.
Large data comes from a source, which is asked for its next frame when little is waiting. So an
order to end overtakes a call of gigabytes.
"""

from __future__ import annotations

import json
import selectors
import struct
from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from horovod.core.base.checked import BadMessageError, Fields
from horovod.launch.workers.output import Console

MAGIC = b"\0horovod agent 5\n"  # the number is the protocol's version
CHUNK_BYTES = 64 * 1024
# A plan contains the launcher's whole environment, which a system limits to less than this.
_MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
_NUMBER_BYTES = 8
_STREAMS = (0, 1)
_HEAD = struct.Struct("!BBII")  # kind, stream, worker, bytes of the payload


class Kind(IntEnum):
    """The kinds of frames. The first group goes to the agent, the second comes from it."""

    PLAN = 1  # JSON: what is the same for all workers of the host (host_plan.py)
    CALL = 2  # a piece of horovod.run's call
    START = 3  # JSON: a worker to start, at any time; the call is complete
    TAKEN = 4  # so many bytes of this stream's output have been passed on
    END = 5  # ask all processes to end; stream 1: also those that left their groups
    KILL = 6
    END_WORKER = 7  # ask one worker to end; it is killed if it does not
    KILL_WORKER = 8
    FORGET = 9  # drop this worker: end its processes and close its output

    HELLO = 16  # JSON: the agent is there, with these workers
    STARTED = 17  # a worker, and its pid
    TROUBLE = 18  # JSON: why a worker, or any at all, cannot be started (``Trouble``)
    OUTPUT = 19  # bytes that a worker has written to stream 0 (stdout) or 1 (stderr)
    CLOSED = 20  # a worker's stream has ended
    ANSWER = 21  # a piece of a worker's answer to the call
    EXITED = 22  # a worker, and its exit code
    GONE = 23  # no process of the host is left, and all output has been sent


class Frame(NamedTuple):
    """One message. ``worker``, a number, and ``stream`` are 0 where they have no meaning."""

    kind: Kind
    worker: int = 0
    stream: int = 0
    payload: bytes = b""

    @property
    def number(self) -> int:
        """The payload of kinds that carry a number."""
        if len(self.payload) != _NUMBER_BYTES:
            raise self.error("payload", f"{len(self.payload)} bytes", "a number of 8 bytes")
        return int.from_bytes(self.payload, "big", signed=True)

    def error(self, field: str, found: str, expected: str) -> BadMessageError:
        """An error about one of its fields."""
        return BadMessageError(self.kind.name, field, found, expected)

    @property
    def fields(self) -> Fields:
        """The payload of kinds that carry JSON; BadMessageError when it is none."""
        return Fields.read(self.kind.name, self.payload)


class FrameError(Exception):
    """The other side does not speak this protocol."""


def encode(kind: Kind, payload: bytes | int = b"", *, worker: int = 0, stream: int = 0) -> bytes:
    """The bytes of a frame."""
    if isinstance(payload, int):
        payload = payload.to_bytes(_NUMBER_BYTES, "big", signed=True)
    return _HEAD.pack(kind, stream, worker, len(payload)) + payload


def encode_json(kind: Kind, fields: dict[str, Any]) -> bytes:
    """A frame whose payload is ``fields``. Bytes that are no text are kept as surrogates."""
    return encode(kind, json.dumps(fields).encode())


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """All frames that ``data`` completes. Raises FrameError."""
        self._received += data
        while (frame := self._take()) is not None:
            yield frame

    def _take(self) -> Frame | None:
        received = self._received
        if len(received) < _HEAD.size:
            return None
        kind, stream, worker, payload_bytes = _HEAD.unpack_from(received)
        is_known = kind in Kind.__members__.values() and stream in _STREAMS
        if not is_known or payload_bytes > _MAX_PAYLOAD_BYTES:
            raise FrameError(f"a frame of kind {kind}, stream {stream}, with {payload_bytes} bytes")
        end = _HEAD.size + payload_bytes
        if len(received) < end:
            return None
        payload = bytes(received[_HEAD.size : end])
        del received[:end]
        return Frame(Kind(kind), worker, stream, payload)


_LOW_WATER_BYTES = 256 * 1024


class FrameWriter:
    """Writes encoded frames to ``fd`` as its reader takes them, each ``sealed`` before."""

    def __init__(
        self, fd: int, selector: selectors.BaseSelector, sealed: Callable[[bytes], bytes] = bytes
    ) -> None:
        self._console = Console(fd, selector)
        self._sealed = sealed
        self._sources: deque[Iterator[bytes]] = deque()

    @property
    def is_broken(self) -> bool:
        """Whether no process reads any more."""
        return self._console.is_broken

    def send(self, frame: bytes) -> None:
        """Send ``frame`` before everything that is still in a source."""
        self._console.write(self._sealed(frame))

    def send_from(self, source: Iterator[bytes]) -> None:
        """Send the frames of ``source`` after those of earlier sources, as they are read."""
        self._sources.append(source)
        self.refill()

    def refill(self) -> None:
        """Ask the sources for more if little is waiting; called in every turn of a loop."""
        while self._sources and self._console.waiting_bytes < _LOW_WATER_BYTES:
            frame = next(self._sources[0], None)
            if frame is None:
                self._sources.popleft()
            else:
                self._console.write(self._sealed(frame))

    def close(self) -> None:
        """Drop what has not been sent. The descriptor stays open."""
        self._sources.clear()
        self._console.abandon()
