"""Records: they protect a connection that nothing else protects, after the proof exchange. Pure.

    length (4 bytes), its code, bytes, their code

Both codes are ``RecordCodes`` of the direction, so a record that was altered, repeated, left out or
moved is an error. An altered length is an error at once, so no side waits for bytes that it
promises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from horovod.rendezvous.base.authentication import CODE_BYTES, RecordCodes

_LENGTH = struct.Struct(">I")


class RecordError(ConnectionError):
    """The bytes that arrived are not those that the other end sent."""


class Records:
    """Both directions as one end sees them; each has its own key (``derive_key``).

    ``most_bytes``: of a record that arrives.
    """

    def __init__(self, own_key: bytes, their_key: bytes, most_bytes: int = 2**32 - 1) -> None:
        self._most_bytes = most_bytes
        self._own = RecordCodes(own_key)
        self._theirs = RecordCodes(their_key)
        self._received = bytearray()
        self._expected = -1  # bytes of the record whose length has come; -1 for none
        self._opened = 0

    def sealed(self, data: bytes) -> bytes:
        """The record of ``data``; to be sent in the order of the calls."""
        length = _LENGTH.pack(len(data))
        return b"".join((length, self._own.next(length), data, self._own.next(data)))

    def opened(self, received: bytes) -> Iterator[bytes]:
        """The contents of all records that ``received`` completes.

        Raises:
            RecordError: a code is wrong. No later record can be opened.
        """
        self._received += received
        while True:
            if self._expected < 0:
                if (length := self._take(_LENGTH.size)) is None:
                    return
                (self._expected,) = _LENGTH.unpack(length)
                if self._expected > self._most_bytes:
                    raise RecordError(
                        f"a record of {self._expected} bytes, at most {self._most_bytes} fit"
                    )
            if (data := self._take(self._expected)) is None:
                return
            self._expected = -1
            self._opened += 1
            yield data

    def _take(self, size_bytes: int) -> bytes | None:
        """The next bytes, once they have arrived with their code."""
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
