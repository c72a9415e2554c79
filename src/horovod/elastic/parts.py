"""Parts of a state that a process gets before it joins, and what is said about them.

Training would wait while a state travels over a slow link. So a process that is about to join asks
rank 0 for it beforehand, part by part, and again for each part that has changed meanwhile
(``part_client.py``, ``part_server.py``). When it joins, ``sync`` compares the parts of all ranks
and sends those that still differ. So nothing here decides what the state is: a part that is old,
torn or missing costs time only.

After the proof exchange both ends send records (``rendezvous/base/records.py``)::

    client -> server   PartRequest
    server -> client   PartAnswer, then the bytes of the part in records of CHUNK_BYTES
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

from horovod.core.base.checked import Fields, Record, between
from horovod.rendezvous.base import handshake
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.records import Records

PROTOCOL = handshake.Protocol(b"hvdpart2")
CHUNK_BYTES = 64 * 1024
MOST_PARTS = 4096
NONE = -1  # no part, or no version of one
_MOST_VERSION = 2**63 - 1
_MOST_NUMBERS = 64  # of a header
_MOST_MESSAGE_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024
HANDSHAKE_S = 10.0
# How long an end may say nothing. A server answers at least every ANSWER_S seconds.
SILENT_S = 30.0
ANSWER_S = 5.0


class StatePart(NamedTuple):
    """A part as it is now: some whole numbers that describe it, and tensors of so many bytes.

    Tensors that have other contents later must be other objects then. ``changed_at``: larger for
    parts that have changed later. ``is_settled``: it is not about to change.
    """

    header: tuple[int, ...]
    tensors: tuple[Any, ...]
    size_bytes: int
    changed_at: int = 0
    is_settled: bool = True

    def is_same(self, other: StatePart) -> bool:
        """Whether it is another look at the same."""
        if self.header != other.header or len(self.tensors) != len(other.tensors):
            return False
        return all(one is two for one, two in zip(self.tensors, other.tensors, strict=True))


class StateParts(Protocol):
    """The parts of one state, in the order that all ranks know."""

    def __len__(self) -> int:
        """How many there are."""

    def read(self) -> list[StatePart]:
        """All parts as they are; none before there is anything to send. From any thread."""

    def bytes_of(self, tensor: Any) -> memoryview:
        """The contents of a tensor of a part. From any thread."""

    def expected_bytes(self, number: int, header: tuple[int, ...]) -> int:
        """How many bytes a part of this description has here; ``ValueError`` if it has none."""

    def put(self, number: int, header: tuple[int, ...], data: bytearray) -> None:
        """Take a part over that has so many bytes. From any thread before training begins."""


@dataclass(frozen=True)
class PartServerAddresses(Record):
    """Where rank 0 listens."""

    message = "addresses of a part server"

    addresses: Annotated[tuple[tuple[str, int], ...], Fields.addresses]


class MisfitError(ValueError):
    """The state of this process is not like rank 0's, so ``sync`` would fail on all ranks."""


def _versions(fields: Fields, name: str) -> tuple[int, ...]:
    return fields.integers(name, NONE, _MOST_VERSION, most_of_them=MOST_PARTS)


def _header(fields: Fields, name: str) -> tuple[int, ...]:
    return fields.integers(name, most_of_them=_MOST_NUMBERS)


@dataclass(frozen=True)
class PartRequest(Record):
    """What a client has: the version of each part. ``is_current``: it has heard that this will do.

    The server answers when it has something else to say, or after ``ANSWER_S``.
    """

    message = "part request"

    versions: Annotated[tuple[int, ...], _versions]
    is_current: bool


@dataclass(frozen=True)
class PartAnswer(Record):
    """A part follows that the client lacks; or none. There are ``parts`` of them.

    ``is_current``: the client has all parts, in their last version but for those that are about to
    change. A client with another number of parts gets none.
    """

    message = "part answer"

    parts: Annotated[int, between(0, MOST_PARTS)]
    is_current: bool = False
    part: Annotated[int, between(NONE, MOST_PARTS - 1)] = NONE
    version: Annotated[int, between(NONE, _MOST_VERSION)] = NONE
    header: Annotated[tuple[int, ...], _header] = ()
    size_bytes: int = 0


class PartStream:
    """One end of a connection after the proof exchange.

    Its methods block until done, raise ``ConnectionError`` when the other end is gone or the bytes
    were altered, and ``TimeoutError`` after ``SILENT_S`` without a byte.
    """

    def __init__(self, connected: socket.socket, side: handshake.Side) -> None:
        self._socket = connected
        self._records = Records(side.send_key, side.receive_key, _MOST_MESSAGE_BYTES)
        self._opened: Iterator[bytes] = iter(())
        connected.settimeout(SILENT_S)

    def send(self, data: bytes | memoryview) -> None:
        """Send a message, or a piece of a part."""
        self._socket.sendall(self._records.sealed(bytes(data)))

    def receive(self) -> bytes:
        """What the other end has sent by one ``send``."""
        while (data := next(self._opened, None)) is None:
            self._opened = self._records.opened(received(self._socket, _READ_BYTES))
        return data


def receive_exactly(connected: socket.socket, count: int, deadline: Deadline) -> bytes:
    """So many bytes before the deadline; raises as ``PartStream``."""
    data = b""
    while len(data) < count:
        connected.settimeout(max(deadline.remaining_s(), 0.001))
        data += received(connected, count - len(data))
    return data


def received(connected: socket.socket, most: int) -> bytes:
    """Some bytes, at least one; raises as ``PartStream``."""
    data = connected.recv(most)
    if not data:
        raise ConnectionError("the other end has closed the connection")
    return data
