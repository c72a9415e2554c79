"""Codes of the objects that ranks send each other, from end to end. Only the nonces are random.

Collectives carry bytes over connections that need not protect them, or over MPI's or Gloo's. So an
object is sent in two steps. First every rank *announces* itself to all: its rank, the length of its
object, and a fresh nonce. Then each object follows with a code (HMAC-SHA256)
under a key that is derived from the world's own, the operation, its name, the process set, the
sender and all announcements. The receiver's own nonce is among these, so the code fits this one
operation: an object that was altered, or sent earlier, under another name or by another rank, has a
wrong code. Operations are not numbered, so ranks that have joined meanwhile stay in step.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from typing import TypeVar

from horovod.errors import AlteredObjectError
from horovod.rendezvous.base.authentication import (
    CODE_BYTES,
    RecordCodes,
    derive_key,
    is_proof,
    prove,
)

PICKLING_FAILED = -1

_Bytes = TypeVar("_Bytes", bytes, memoryview)
_NONCE_BYTES = 16
_FIELDS = struct.Struct(f">Iq{_NONCE_BYTES}s")  # rank, length, nonce
ROW_BYTES = _FIELDS.size + CODE_BYTES
_ROW, _OBJECT = b"horovod object row", b"horovod object"


class ObjectCodes:
    """One operation, as ``rank`` sees it. ``row`` is its announcement, ``ROW_BYTES`` long.

    Call ``receive`` with the rows of all ranks, then the rest. ``key`` is the world's.
    """

    def __init__(
        self, key: bytes, operation: str, name: str, process_set_id: int, rank: int, length: int
    ) -> None:
        self._key = key
        self.title = f"{operation} {name!r}"
        self._operation = operation
        self._name = name
        context = (operation, name, str(process_set_id))
        self._context = [text.encode(errors="surrogatepass") for text in context]
        self._rank = rank
        fields = _FIELDS.pack(rank, length, os.urandom(_NONCE_BYTES))
        self.row = fields + prove(key, _ROW, *self._context, fields)
        self._rows: dict[int, bytes] = {}
        self._all = b""

    def receive(self, rows: bytes, members: Sequence[int]) -> None:
        """Take the announcements of all ranks, one row after the other, in one order on all ranks.

        ``members`` are the ranks of the process set; those that have joined announce nothing.

        Raises:
            AlteredObjectError: a row is of no member, or this rank's own is not as it was sent.
        """
        silent = dict.fromkeys(members)
        for start in range(0, len(rows), ROW_BYTES):
            row = rows[start : start + ROW_BYTES]
            rank = int.from_bytes(row[:4], "big")
            if rank not in silent:
                raise self._altered(next(iter(silent), self._rank))
            del silent[rank]
            self._rows[rank] = row
        if self._rows.get(self._rank) != self.row:
            raise self._altered(self._rank)
        self._all = hashlib.sha256(rows).digest()

    def lengths(self) -> dict[int, int]:
        """The lengths of all that announced themselves, by rank, in the order of the rows.

        Raises:
            AlteredObjectError: some row is not what its rank sent.
        """
        return {rank: self.length_of(rank) for rank in self._rows}

    def length_of(self, rank: int) -> int:
        """How many bytes ``rank`` is going to send; 0 if it has announced nothing.

        Raises as ``lengths``.
        """
        row = self._rows.get(rank)
        if row is None:
            return 0
        fields, code = row[: _FIELDS.size], row[_FIELDS.size :]
        if row != self.row and not is_proof(code, self._key, _ROW, *self._context, fields):
            raise self._altered(rank)
        length: int = _FIELDS.unpack(fields)[1]
        return length

    def failed(self) -> list[int]:
        """The ranks that could not pickle their objects. Raises as ``lengths``."""
        marked = [rank for rank, row in self._rows.items() if _FIELDS.unpack_from(row)[1] < 0]
        return sorted(rank for rank in marked if self.length_of(rank) == PICKLING_FAILED)

    def code(self, payload: bytes | memoryview) -> bytes:
        """The code of this rank's object, whose bytes are ``payload``."""
        return self._codes_of(self._rank).next(payload)

    def check(self, sender: int, payload: bytes | memoryview, code: bytes | memoryview) -> None:
        """Refuse what is not ``sender``'s object of this operation.

        Raises:
            AlteredObjectError: it is not.
        """
        if not self._codes_of(sender).is_next(bytes(code), payload):
            raise self._altered(sender)

    def payloads(self, lengths: Mapping[int, int], records: _Bytes) -> list[_Bytes]:
        """The payloads in the joined ``records`` of all that announced themselves, in their order.

        A record is a payload with its code behind it; ``lengths`` are what ``lengths`` returned.

        Raises:
            AlteredObjectError: one is not its sender's.
        """
        found: list[_Bytes] = []
        start = 0
        for sender, length in lengths.items():
            end = start + length
            found.append(records[start:end])
            start = end + CODE_BYTES
            self.check(sender, found[-1], records[end:start])
        return found

    def _codes_of(self, sender: int) -> RecordCodes:
        sender_bytes = sender.to_bytes(4, "big")
        return RecordCodes(derive_key(self._key, _OBJECT, *self._context, self._all, sender_bytes))

    def _altered(self, sender: int) -> AlteredObjectError:
        return AlteredObjectError(self._operation, self._name, sender)
