"""Values of any length, in chunks under one proof, in a store that other programs may write to.

The proof (``authentication.prove``) is over role, key and the whole value. Without the secret a
value cannot be written or altered, and no chunk can be left out or taken from another value or key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from horovod.rendezvous.base.authentication import PROOF_BYTES, is_proof, prove
from horovod.rendezvous.store.client import Store, set_and_get, swap_and_get

_CHUNK_BYTES = 60_000
_MOST_CHUNKS = 4096  # of one value, 245 MB
_HEAD = struct.Struct(f"!{PROOF_BYTES}sI")  # the proof, the number of further chunks


class UnprovenError(Exception):
    """The value under a key was not written by a process that knows the secret."""


class ProvenValues:
    """The values of one ``role`` in ``store``; each key is used once."""

    def __init__(self, store: Store, secret: bytes, role: bytes) -> None:
        self._store = store
        self._secret = secret
        self._role = role

    def put(self, key: str, value: bytes) -> None:
        """Set ``key`` to ``value``."""
        self._store.set(key, self._head_of(key, value))

    def take(self, key: str, wait_s: float, own: tuple[str, bytes] | None = None) -> bytes | None:
        """The value under ``key``; None if there is none in time.

        ``own``: key and value to ``put`` before, together in one round trip if values are short.

        Raises:
            UnprovenError: it has no valid proof.
        """
        try:
            if own is None:
                first = self._store.get(key, wait_s)
            else:
                first = set_and_get(self._store, own[0], self._head_of(*own), key, wait_s)
        except TimeoutError:
            return None
        return self._proven(key, first)

    def swap_and_take(
        self,
        key: str,
        value: bytes,
        wanted: Sequence[tuple[str, float]],
        should_stop: Callable[[int, bytes | None], bool],
    ) -> list[bytes | None]:
        """``put`` a short value, and ``take`` what was there before and the ``wanted`` keys.

        At best in one round trip. See ``swap_and_get``; all values but the last must be short.

        Raises:
            UnprovenError: a wanted value has no valid proof. What was there before may lack it.
        """
        keys = [key, *(each for each, _ in wanted)]
        taken: list[bytes | None] = []
        unproven: list[str] = []

        def is_last(number: int, found: bytes | None) -> bool:
            # One chunk: the store has this request under way, and cannot be asked for others.
            try:
                value = None if found is None else self._proven(keys[number], found, most_chunks=0)
            except UnprovenError:
                value = None
                unproven[:] = keys[max(number, 1) : number + 1]
            taken[number:] = [value]
            return bool(unproven) or should_stop(number, value)

        found = swap_and_get(self._store, key, self._head_of(key, value), wanted, is_last)
        if unproven:
            raise UnprovenError(unproven[0])
        if len(found) == len(keys):
            last = found[-1]
            taken[len(wanted) :] = [None if last is None else self._proven(keys[-1], last)]
        return taken

    def _head_of(self, key: str, value: bytes) -> bytes:
        """The first chunk, which counts the others: these are in the store before it."""
        starts = range(_CHUNK_BYTES, len(value), _CHUNK_BYTES)
        for number, start in enumerate(starts):
            self._store.set(f"{key}/{number}", value[start : start + _CHUNK_BYTES])
        proof = prove(self._secret, self._role, key.encode(), value)
        return _HEAD.pack(proof, len(starts)) + value[:_CHUNK_BYTES]

    def _proven(self, key: str, first: bytes, most_chunks: int = _MOST_CHUNKS) -> bytes:
        if len(first) < _HEAD.size:
            raise UnprovenError(key)
        proof, count = _HEAD.unpack_from(first)
        if count > most_chunks:
            raise UnprovenError(key)
        value = b"".join((first[_HEAD.size :], *self._rest(key, count)))
        if not is_proof(proof, self._secret, self._role, key.encode(), value):
            raise UnprovenError(key)
        return value

    def _rest(self, key: str, count: int) -> list[bytes]:
        try:
            return [self._store.get(f"{key}/{number}", 0.0) for number in range(count)]
        except TimeoutError:
            raise UnprovenError(key) from None
