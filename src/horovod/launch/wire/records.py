"""Records over a connection that nothing else protects, as that between launcher and guest. Pure.

    length (4 bytes), its code, bytes, their code

Both codes are ``RecordCodes`` of the direction, so a record that was altered, repeated, left out or
moved is an error, and nobody waits for bytes that an altered length promises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from horovod.rendezvous.base.authentication import CODE_BYTES, RecordCodes

__all__ = ["RecordError", "Records"]

_LENGTH = struct.Struct(">I")


class RecordError(ConnectionError):
    """What has come is not what the other end has sent."""


class Records:
    """Both directions as one end sees them; each has a key of its own (``derive_key``)."""

    def __init__(self, own_key: bytes, their_key: bytes) -> None:
        self._own = RecordCodes(own_key)
        self._theirs = RecordCodes(their_key)
        self._received = bytearray()
        self._expected = -1  # bytes of the record whose length has come; -1 for none
        self._opened = 0

    def sealed(self, data: bytes) -> bytes:
        """``data`` as it travels; to be sent in the order in which it was sealed."""
        length = _LENGTH.pack(len(data))
        return b"".join((length, self._own.next(length), data, self._own.next(data)))

    def opened(self, received: bytes) -> Iterator[bytes]:
        """The contents of all records that ``received`` completes.

        Raises:
            RecordError: a code is wrong. Nothing that comes later can be opened.
        """
        self._received += received
        while True:
            if self._expected < 0:
                length = self._take(_LENGTH.size)
                if length is None:
                    return
                (self._expected,) = _LENGTH.unpack(length)
            data = self._take(self._expected)
            if data is None:
                return
            self._expected = -1
            self._opened += 1
            yield data

    def _take(self, size_bytes: int) -> bytes | None:
        """The next bytes, once they are there with their code."""
        end = size_bytes + CODE_BYTES
        if len(self._received) < end:
            return None
        data, code = bytes(self._received[:size_bytes]), bytes(self._received[size_bytes:end])
        if not self._theirs.is_next(code, data):
            raise RecordError(
                f"record {self._opened + 1} of this connection has a wrong code, so it was altered "
                "on the way"
            )
        del self._received[:end]
        return data
