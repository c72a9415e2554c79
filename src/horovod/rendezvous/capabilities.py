"""What every rank tells all others first, and what follows from it: which ranks form a host."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.core.base.checked import MOST_PID, MOST_RANKS, Fields, printable
from horovod.rendezvous.identity.host_id import HostId

__all__ = [
    "RankCapabilities",
    "decode_card",
    "describe_difference",
    "encode_card",
    "hosts_of",
    "split_names",
]


@dataclass(frozen=True)
class RankCapabilities:
    """One process. ``node`` is its machine as the launcher counts; ``token`` tells it from another
    process that takes itself for the same rank.
    """

    rank: int
    size: int
    region_bytes: int
    pid: int
    hostname: str
    node: str
    place: HostId
    token: str = dataclasses.field(default_factory=lambda: os.urandom(8).hex())

    @property
    def name(self) -> str:
        """For messages."""
        return f"rank {self.rank} (pid {self.pid} on {self.hostname})"


def encode_card(card: RankCapabilities) -> bytes:
    """The card as it travels."""
    return json.dumps(dataclasses.asdict(card)).encode()


def decode_card(text: bytes) -> RankCapabilities:
    """The card in ``text``; BadMessageError if it is none."""
    fields = Fields.read("card", text)
    place = fields.fields("place")
    card = RankCapabilities(
        rank=fields.integer("rank", 0, MOST_RANKS - 1),
        size=fields.integer("size", 1, MOST_RANKS),
        region_bytes=fields.integer("region_bytes"),
        pid=fields.integer("pid", 1, MOST_PID),
        hostname=printable(fields.text("hostname", 255)),
        node=printable(fields.text("node", 255)),
        place=HostId(place.text("host", 1024), place.text("network", 1024)),
        token=fields.text("token", 64),
    )
    place.close()
    fields.close()
    return card


def describe_difference(first: RankCapabilities, card: RankCapabilities) -> str | None:
    """In what ``card`` differs from the first rank's, in words; None if they can form a world."""
    for what, theirs, ours in (
        ("size", card.size, first.size),
        ("region of bytes", card.region_bytes, first.region_bytes),
    ):
        if theirs != ours:
            return f"rank {card.rank} has {what} {theirs}, rank {first.rank} has {ours}"
    return None


def hosts_of(cards: Sequence[RankCapabilities]) -> tuple[tuple[int, ...], ...]:
    """The ranks that can share memory, group by group, in the order of their lowest ranks."""
    groups: dict[str, list[int]] = {}
    for card in cards:
        groups.setdefault(card.place.host, []).append(card.rank)
    return tuple(map(tuple, groups.values()))


def split_names(cards: Sequence[RankCapabilities], hosts: Sequence[Sequence[int]]) -> list[str]:
    """Host names under which there are several groups that cannot share memory."""
    names = [name for host in hosts for name in {cards[rank].hostname for rank in host}]
    return sorted({name for name in names if names.count(name) > 1})
