"""What travels between a store's client and its server: the hello, and frames of a few bytes.

    server -> client   MAGIC, nonce                                   40 bytes
    client -> server   MAGIC, nonce, proof as client                  72 bytes
    server -> client   instance, proof as server over it, or REFUSAL  48 bytes
    then, one at a time:
    client -> server   length, Request, code                          4 + n + 32 bytes
    server -> client   length, status, value, code                    4 + n + 32 bytes

Until both proofs are verified only lengths known in advance are read and nothing is interpreted.
From then on each frame carries a code under a key of this connection and direction, over its
running number, length and body; nothing is interpreted before it holds. ``instance`` tells one
server from another at the same address.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from horovod.rendezvous.base.authentication import (
    CODE_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    RecordCodes,
    derive_key,
)

__all__ = [
    "CHALLENGE_BYTES",
    "CLIENT_BYTES",
    "CLIENT_ROLE",
    "FRAME_BYTES",
    "HELLO_BYTES",
    "INSTANCE_BYTES",
    "LENGTH",
    "MAGIC",
    "MAX_BODY_BYTES",
    "MAX_KEY_BYTES",
    "REFUSAL",
    "SERVER_ROLE",
    "WELCOME_BYTES",
    "Operation",
    "Request",
    "Status",
    "body_in",
    "check_size",
    "codes_of",
    "decode_request",
    "encode_request",
    "frame",
    "missing_bytes",
]

MAGIC = b"hvdstor2"  # the last character is the protocol's version
CHALLENGE_BYTES = len(MAGIC) + NONCE_BYTES
HELLO_BYTES = len(MAGIC) + NONCE_BYTES + PROOF_BYTES
INSTANCE_BYTES = 16
WELCOME_BYTES = INSTANCE_BYTES + PROOF_BYTES
REFUSAL = bytes(WELCOME_BYTES)  # in place of a welcome, to who does not know the secret
CLIENT_ROLE = b"horovod store client"
SERVER_ROLE = b"horovod store server"

LENGTH = struct.Struct("!I")
MAX_BODY_BYTES = 64 * 1024
MAX_KEY_BYTES = 255
FRAME_BYTES = LENGTH.size + CODE_BYTES  # beside the body
CLIENT_BYTES = 16
# Operation, client, number of the request, timeout in ms, length of the key.
_REQUEST = struct.Struct(f"!B{CLIENT_BYTES}sQIB")


class Operation(IntEnum):
    """What a client asks for."""

    SET = 1
    GET = 2


class Status(IntEnum):
    """What the server answers."""

    DONE = 0
    TIMEOUT = 1
    ABANDONED = 2  # the value says why nobody must wait for this key or set it
    FULL = 3  # the value says what there is room for


@dataclass(frozen=True)
class Request:
    """Set ``key`` to ``value``, or wait up to ``timeout_ms`` for its value.

    ``client`` and ``number`` say which request it is, so that one which is sent again over another
    connection, since nobody knows whether it arrived, is not done twice.
    """

    operation: Operation
    key: bytes
    value: bytes = b""
    timeout_ms: int = 0
    client: bytes = bytes(CLIENT_BYTES)
    number: int = 0


def codes_of(
    secret: bytes, server_nonce: bytes, client_nonce: bytes
) -> tuple[RecordCodes, RecordCodes]:
    """Of what the client sends over this connection, and of what the server does."""
    nonces = (server_nonce, client_nonce)
    client_key = derive_key(secret, CLIENT_ROLE, *nonces)
    return RecordCodes(client_key), RecordCodes(derive_key(secret, SERVER_ROLE, *nonces))


def check_size(body: bytes) -> None:
    """ValueError when no frame may be as long."""
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"store: {len(body)} bytes in one frame; at most {MAX_BODY_BYTES} fit")


def frame(body: bytes, codes: RecordCodes) -> bytes:
    """``body`` between its length and its code; ValueError when no frame may be as long."""
    check_size(body)
    head = LENGTH.pack(len(body))
    return head + body + codes.next(head, body)


def body_in(received: bytes | bytearray, codes: RecordCodes) -> bytes | None:
    """The body of the frame that ``received`` begins with; None while it is not whole.

    Raises:
        ValueError: it is longer than a frame may be, or its code does not hold.
    """
    if len(received) < LENGTH.size:
        return None
    (body_bytes,) = LENGTH.unpack_from(received)
    if body_bytes > MAX_BODY_BYTES:
        raise ValueError(f"a message of {body_bytes} bytes, at most {MAX_BODY_BYTES} fit")
    end = LENGTH.size + body_bytes
    if len(received) < end + CODE_BYTES:
        return None
    head, body = bytes(received[: LENGTH.size]), bytes(received[LENGTH.size : end])
    if not codes.is_next(bytes(received[end : end + CODE_BYTES]), head, body):
        raise ValueError(
            "a message without the code that it should have: it was altered on its way"
        )
    return body


def missing_bytes(received: bytes) -> int:
    """How many bytes at least are to follow what ``body_in`` does not take for a whole frame."""
    if len(received) < LENGTH.size:
        return LENGTH.size - len(received)
    (body_bytes,) = LENGTH.unpack_from(received)
    return FRAME_BYTES + int(body_bytes) - len(received)


def encode_request(request: Request) -> bytes:
    """The body of a request; ValueError when the key is too long."""
    if len(request.key) > MAX_KEY_BYTES:
        raise ValueError(f"store: key of {len(request.key)} bytes; at most {MAX_KEY_BYTES} fit")
    timeout_ms = min(request.timeout_ms, 2**32 - 1)
    head = _REQUEST.pack(
        request.operation, request.client, request.number, timeout_ms, len(request.key)
    )
    return head + request.key + request.value


def decode_request(body: bytes) -> Request:
    """The request in ``body``; ValueError when it is none."""
    if len(body) < _REQUEST.size:
        raise ValueError(f"a request of {len(body)} bytes")
    operation, client, number, timeout_ms, key_bytes = _REQUEST.unpack_from(body)
    rest = body[_REQUEST.size :]
    if len(rest) < key_bytes:
        raise ValueError(f"a key of {key_bytes} bytes in {len(rest)}")
    key, value = rest[:key_bytes], rest[key_bytes:]
    return Request(Operation(operation), key, value, timeout_ms, client, number)
