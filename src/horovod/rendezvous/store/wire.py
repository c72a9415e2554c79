"""What a store's client and its server send: the proof exchange, then frames of a few bytes.

    base/handshake.py: challenge, hello without a statement, reply that answers with the instance
    then, one at a time:
    client -> server   length, request, code         4 + n + 32 bytes
    server -> client   length, status, value, code   4 + n + 32 bytes

``instance`` tells one server from another at the same address. Each frame carries a code under the
key of its direction, over its running number, length and body. Nothing in a frame is interpreted
before its code holds.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from horovod.rendezvous.base.authentication import CODE_BYTES, RecordCodes
from horovod.rendezvous.base.handshake import Protocol, ProtocolError

INSTANCE_BYTES = 16
PROTOCOL = Protocol(b"hvdstor3", answer_bytes=INSTANCE_BYTES)

LENGTH = struct.Struct("!I")
MAX_BODY_BYTES = 64 * 1024
_MAX_KEY_BYTES = 255
CLIENT_BYTES = 16
# Operation, client, number of the request, timeout in ms, length of the key.
_REQUEST = struct.Struct(f"!B{CLIENT_BYTES}sQIB")


class Operation(IntEnum):
    """The requests of a client."""

    SET = 1
    GET = 2


class Status(IntEnum):
    """The answers of the server."""

    DONE = 0
    TIMEOUT = 1
    ABANDONED = 2  # the value says why this key must not be set or waited for
    FULL = 3  # the value says how much the store holds


class Request(NamedTuple):
    """Set ``key`` to ``value``, or wait up to ``timeout_ms`` for its value.

    ``client`` and ``number`` identify the request. A client that has lost its connection sends it
    again over another one, and the server does it once.
    """

    operation: Operation
    key: bytes
    value: bytes = b""
    timeout_ms: int = 0
    client: bytes = bytes(CLIENT_BYTES)
    number: int = 0

    def to_bytes(self) -> bytes:
        """The body of the request; ValueError when the key is too long."""
        if len(self.key) > _MAX_KEY_BYTES:
            raise ValueError(f"store: key of {len(self.key)} bytes; at most {_MAX_KEY_BYTES} fit")
        timeout_ms = min(self.timeout_ms, 2**32 - 1)
        head = (self.operation, self.client, self.number, timeout_ms, len(self.key))
        return _REQUEST.pack(*head) + self.key + self.value

    @classmethod
    def from_bytes(cls, body: bytes) -> Request:
        """The request in ``body``. Raises ProtocolError."""
        if len(body) < _REQUEST.size:
            raise ProtocolError(f"a request of {len(body)} bytes")
        operation, client, number, timeout_ms, key_bytes = _REQUEST.unpack_from(body)
        rest = body[_REQUEST.size :]
        if len(rest) < key_bytes or operation not in Operation.__members__.values():
            raise ProtocolError(f"operation {operation}, a key of {key_bytes} bytes in {len(rest)}")
        key, value = rest[:key_bytes], rest[key_bytes:]
        return cls(Operation(operation), key, value, timeout_ms, client, number)


def check_size(body: bytes) -> None:
    """ValueError when ``body`` does not fit into a frame."""
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"store: {len(body)} bytes in one frame; at most {MAX_BODY_BYTES} fit")


def frame(body: bytes, codes: RecordCodes) -> bytes:
    """``body`` between its length and its code; ValueError when it does not fit."""
    check_size(body)
    head = LENGTH.pack(len(body))
    return head + body + codes.next(head, body)


def frame_bytes(body: bytes) -> int:
    """Length of the frame of ``body``."""
    return LENGTH.size + len(body) + CODE_BYTES


def body_in(received: bytes | bytearray, codes: RecordCodes) -> bytes | None:
    """The body of the frame that ``received`` begins with; None while it is not whole.

    Raises:
        ProtocolError: it is too long, or its code does not hold.
    """
    if len(received) < LENGTH.size:
        return None
    (body_bytes,) = LENGTH.unpack_from(received)
    if body_bytes > MAX_BODY_BYTES:
        raise ProtocolError(f"a message of {body_bytes} bytes, at most {MAX_BODY_BYTES} fit")
    end = LENGTH.size + body_bytes
    if len(received) < end + CODE_BYTES:
        return None
    head, body = bytes(received[: LENGTH.size]), bytes(received[LENGTH.size : end])
    if not codes.is_next(bytes(received[end : end + CODE_BYTES]), head, body):
        raise ProtocolError("a message with a wrong code: it was altered on its way")
    return body


def missing_bytes(received: bytes) -> int:
    """The least number of bytes that must follow ``received`` to make the frame whole."""
    if len(received) < LENGTH.size:
        return LENGTH.size - len(received)
    (body_bytes,) = LENGTH.unpack_from(received)
    return LENGTH.size + int(body_bytes) + CODE_BYTES - len(received)
