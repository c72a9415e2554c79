"""What every rank tells all others first, and which ranks form a host."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from horovod.core.base.checked import MOST_PID, MOST_RANKS, Fields, printable
from horovod.rendezvous.identity.host_id import HostId


@dataclass(frozen=True)
class RankCapabilities:
    """One process. ``node`` is its machine as the launcher names it. ``token`` tells it from
    another process that believes to be the same rank.
    """

    rank: int
    size: int
    region_bytes: int
    pid: int
    hostname: str
    node: str
    host_id: HostId
    token: str = dataclasses.field(default_factory=lambda: os.urandom(8).hex())

    def to_bytes(self) -> bytes:
        """The capabilities as a message."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> RankCapabilities:
        """The capabilities in ``text``. Raises BadMessageError."""
        fields = Fields.read("capabilities", text)
        host_id = fields.fields("host_id")
        found = cls(
            rank=fields.integer("rank", 0, MOST_RANKS - 1),
            size=fields.integer("size", 1, MOST_RANKS),
            region_bytes=fields.integer("region_bytes"),
            pid=fields.integer("pid", 1, MOST_PID),
            hostname=printable(fields.text("hostname", 255)),
            node=printable(fields.text("node", 255)),
            host_id=HostId(host_id.text("host", 1024), host_id.text("network", 1024)),
            token=fields.text("token", 64),
        )
        host_id.close()
        fields.close()
        return found

    def mismatch(self, other: RankCapabilities) -> str | None:
        """How ``other`` differs from this rank, in words; None if they can form a world."""
        for what, theirs, ours in (
            ("size", other.size, self.size),
            ("region of bytes", other.region_bytes, self.region_bytes),
        ):
            if theirs != ours:
                return f"rank {other.rank} has {what} {theirs}, rank {self.rank} has {ours}"
        return None


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
