"""What a store keeps: values under keys, limited in bytes, and abandoned scopes."""

from __future__ import annotations

_MAX_STORED_BYTES = 256 * 1024 * 1024
# A scope that was abandoned longer ago is forgotten; no client asks for it any more.
_MOST_ABANDONED = 256


class FullError(Exception):
    """There is no room for another value; the text says how much the store holds."""


class StoredValues:
    """Values by key, for one thread at a time."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._stored_bytes = 0
        self._abandoned: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        """Set ``key`` to ``value``. Raises FullError."""
        earlier = self._values.get(key)
        added = len(value) - len(earlier or b"")
        added += len(key) if earlier is None else 0
        if self._stored_bytes + added > _MAX_STORED_BYTES:
            raise FullError(f"the store is full: it holds {self._stored_bytes} bytes")
        self._stored_bytes += added
        self._values[key] = value

    def get(self, key: bytes) -> bytes | None:
        """The value of ``key``, if there is one."""
        return self._values.get(key)

    def found(self, scope: bytes) -> dict[str, bytes]:
        """The values under keys that begin with ``scope``."""
        return {
            key.decode(errors="replace"): value
            for key, value in self._values.items()
            if key.startswith(scope)
        }

    def abandon(self, scope: bytes, reason: bytes) -> None:
        """Drop every value under keys that begin with ``scope``, and remember why."""
        self.drop(scope)
        self._abandoned[scope] = reason
        while len(self._abandoned) > _MOST_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]

    def drop(self, scope: bytes) -> None:
        """Drop every value under keys that begin with ``scope``."""
        for key in [key for key in self._values if key.startswith(scope)]:
            self._stored_bytes -= len(key) + len(self._values.pop(key))

    def reason_against(self, key: bytes) -> bytes | None:
        """Why ``key`` must not be set or waited for; None if its scope is in use."""
        for scope, reason in self._abandoned.items():
            if key.startswith(scope):
                return reason
        return None
