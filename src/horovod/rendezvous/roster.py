"""What every rank tells all others first, and what follows from it: which ranks form a host."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.rendezvous.place import Place

__all__ = ["Card", "decode_card", "describe_difference", "encode_card", "hosts_of", "split_names"]


@dataclass(frozen=True)
class Card:
    """One process. ``node`` is its machine as the launcher counts; ``token`` tells it from another
    process that takes itself for the same rank.
    """

    rank: int
    size: int
    region_bytes: int
    pid: int
    hostname: str
    node: str
    place: Place
    token: str = dataclasses.field(default_factory=lambda: os.urandom(8).hex())

    @property
    def name(self) -> str:
        """For messages."""
        return f"rank {self.rank} (pid {self.pid} on {self.hostname})"


def encode_card(card: Card) -> bytes:
    """The card as it travels."""
    return json.dumps(dataclasses.asdict(card)).encode()


def decode_card(text: bytes) -> Card:
    """The card in ``text``, which an authentic rank wrote."""
    fields = json.loads(text)
    return Card(**{**fields, "place": Place(**fields["place"])})


def describe_difference(first: Card, card: Card) -> str | None:
    """In what ``card`` differs from the first rank's, in words; None if they can form a world."""
    for what, theirs, ours in (
        ("size", card.size, first.size),
        ("region of bytes", card.region_bytes, first.region_bytes),
    ):
        if theirs != ours:
            return f"rank {card.rank} has {what} {theirs}, rank {first.rank} has {ours}"
    return None


def hosts_of(cards: Sequence[Card]) -> tuple[tuple[int, ...], ...]:
    """The ranks that can share memory, group by group, in the order of their lowest ranks."""
    groups: dict[str, list[int]] = {}
    for card in cards:
        groups.setdefault(card.place.host, []).append(card.rank)
    return tuple(map(tuple, groups.values()))


def split_names(cards: Sequence[Card], hosts: Sequence[Sequence[int]]) -> list[str]:
    """Host names under which there are several groups that cannot share memory."""
    names = [name for host in hosts for name in {cards[rank].hostname for rank in host}]
    return sorted({name for name in names if names.count(name) > 1})
