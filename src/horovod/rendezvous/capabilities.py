"""What every rank tells all others first, and which ranks form a host.

A rank that knows of other hosts adds its *offer*: where it listens for them (``links/round.py``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from horovod.core.base.checked import MOST_PID, MOST_RANKS, Record, between, limited, shown
from horovod.rendezvous.identity.host_id import HostId

_END = b"\n"  # of the capabilities: no message in JSON has one


@dataclass(frozen=True)
class RankCapabilities(Record):
    """One process. ``node`` is its machine as the launcher names it. ``token`` tells it from
    another process that believes to be the same rank. ``proposal``: what all ranks have to want
    alike, as a digest; empty if they have to talk about it.
    """

    message = "capabilities"

    rank: Annotated[int, between(0, MOST_RANKS - 1)]
    size: Annotated[int, between(1, MOST_RANKS)]
    region_bytes: int
    pid: Annotated[int, between(1, MOST_PID)]
    hostname: Annotated[str, shown(255)]
    node: Annotated[str, shown(255)]
    host_id: HostId
    proposal: Annotated[str, limited(64)] = ""
    token: Annotated[str, limited(64)] = field(default_factory=lambda: os.urandom(8).hex())

    def mismatch(self, other: RankCapabilities) -> str | None:
        """How ``other`` differs from this rank, in words; None if they can form a world."""
        for what, theirs, ours in (
            ("size", other.size, self.size),
            ("region of bytes", other.region_bytes, self.region_bytes),
        ):
            if theirs != ours:
                return f"rank {other.rank} has {what} {theirs}, rank {self.rank} has {ours}"
        return None


def said_of(own: RankCapabilities, offer: bytes) -> bytes:
    """What a rank says: its capabilities, and its offer, which is empty if it makes none."""
    return own.to_bytes() + _END + offer


def capabilities_in(said: bytes) -> RankCapabilities:
    """The first part of it. Raises BadMessageError."""
    return RankCapabilities.from_bytes(said.partition(_END)[0])


def offers_in(said: Sequence[bytes]) -> list[bytes]:
    """The offers of all ranks, unchecked; none if not all have made one."""
    offers = [each.partition(_END)[2] for each in said]
    return offers if all(offers) else []


def is_agreed(ranks: Sequence[RankCapabilities]) -> bool:
    """Whether all ranks propose the same."""
    first = ranks[0].proposal
    return first != "" and all(each.proposal == first for each in ranks)


def hosts_of(ranks: Sequence[RankCapabilities]) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks that can share memory, in the order of their lowest ranks."""
    groups: dict[str, list[int]] = {}
    for each in ranks:
        groups.setdefault(each.host_id.host, []).append(each.rank)
    return tuple(map(tuple, groups.values()))


def split_names(ranks: Sequence[RankCapabilities], hosts: Sequence[Sequence[int]]) -> list[str]:
    """Host names under which there are several groups that cannot share memory."""
    names = [name for host in hosts for name in {ranks[rank].hostname for rank in host}]
    return sorted({name for name in names if names.count(name) > 1})
