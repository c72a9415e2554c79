"""Connections that have proved nothing yet, and which of them goes when there are too many. Pure.

The oldest of the address that has the most of them: so a flood from one address takes nothing from
a rank at another one, and a rank at the same address has as long to answer as it takes the flood
to fill its part anew. Whose connection was dropped all the same dials again.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["UnauthenticatedPeers"]

Stranger = TypeVar("Stranger", bound=Hashable)


class UnauthenticatedPeers(Generic[Stranger]):
    """``most`` of them at most, by the address that they come from."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._address_of: dict[Stranger, str] = {}
        self._at: dict[str, dict[Stranger, None]] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._address_of)

    def __contains__(self, stranger: Stranger) -> bool:
        return stranger in self._address_of

    @property
    def is_full(self) -> bool:
        """Whether one has to go before another one comes."""
        return len(self) >= self.most

    def add(self, stranger: Stranger, address: str) -> None:
        """One has come."""
        self._address_of[stranger] = address
        self._at.setdefault(address, {})[stranger] = None

    def remove(self, stranger: Stranger) -> str | None:
        """It has left, or is no stranger any more; its address, None if it was none of these."""
        address = self._address_of.pop(stranger, None)
        if address is not None:
            del self._at[address][stranger]
            if not self._at[address]:
                del self._at[address]
        return address

    def first_to_go(self) -> Stranger | None:
        """Who makes room for the next; None if nobody is here."""
        crowd = max(self._at.values(), key=len, default=None)
        return None if crowd is None else next(iter(crowd))
