"""What travels between a store's client and its server: the hello, and frames of a few bytes.

    server -> client   MAGIC, nonce                                   40 bytes
    client -> server   MAGIC, nonce, proof as client                  72 bytes
    server -> client   proof as server                                32 bytes
    then, one at a time:
    client -> server   length, Request                                4 + n bytes
    server -> client   length, status, value                          4 + n bytes

Until both proofs are verified only lengths known in advance are read and nothing is interpreted.
Frames after that carry no code of their own; who relies on a value across a network adds a proof to
it (see ``gathering``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from horovod.rendezvous.authentication import NONCE_BYTES, PROOF_BYTES

__all__ = [
    "CHALLENGE_BYTES",
    "CLIENT_ROLE",
    "HELLO_BYTES",
    "LENGTH",
    "MAGIC",
    "MAX_BODY_BYTES",
    "MAX_KEY_BYTES",
    "SERVER_ROLE",
    "Operation",
    "Request",
    "Status",
    "decode_request",
    "encode_request",
    "frame",
]

MAGIC = b"hvdstor1"  # the last character is the protocol's version
CHALLENGE_BYTES = len(MAGIC) + NONCE_BYTES
HELLO_BYTES = len(MAGIC) + NONCE_BYTES + PROOF_BYTES
CLIENT_ROLE = b"horovod store client"
SERVER_ROLE = b"horovod store server"

LENGTH = struct.Struct("!I")
MAX_BODY_BYTES = 64 * 1024
MAX_KEY_BYTES = 255
_REQUEST = struct.Struct("!BIB")  # operation, timeout in ms, length of the key


class Operation(IntEnum):
    """What a client asks for."""

    SET = 1
    GET = 2


class Status(IntEnum):
    """What the server answers."""

    DONE = 0
    TIMEOUT = 1
    ABANDONED = 2  # the value says why nobody must wait for this key or set it


@dataclass(frozen=True)
class Request:
    """Set ``key`` to ``value``, or wait up to ``timeout_ms`` for its value."""

    operation: Operation
    key: bytes
    value: bytes = b""
    timeout_ms: int = 0


def frame(body: bytes) -> bytes:
    """``body`` with its length in front; ValueError when it is longer than a frame may be."""
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"store: {len(body)} bytes in one frame; at most {MAX_BODY_BYTES} fit")
    return LENGTH.pack(len(body)) + body


def encode_request(request: Request) -> bytes:
    """The body of a request; ValueError when the key is too long."""
    if len(request.key) > MAX_KEY_BYTES:
        raise ValueError(f"store: key of {len(request.key)} bytes; at most {MAX_KEY_BYTES} fit")
    timeout_ms = min(request.timeout_ms, 2**32 - 1)
    head = _REQUEST.pack(request.operation, timeout_ms, len(request.key))
    return head + request.key + request.value


def decode_request(body: bytes) -> Request:
    """The request in ``body``; ValueError when it is none."""
    if len(body) < _REQUEST.size:
        raise ValueError(f"a request of {len(body)} bytes")
    operation, timeout_ms, key_bytes = _REQUEST.unpack_from(body)
    rest = body[_REQUEST.size :]
    if len(rest) < key_bytes:
        raise ValueError(f"a key of {key_bytes} bytes in {len(rest)}")
    return Request(Operation(operation), rest[:key_bytes], rest[key_bytes:], timeout_ms)
