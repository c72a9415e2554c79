"""Which connections a rank has to ranks of other hosts: pure, and the same seen from both ends.

*Channels* carry data: as many as the largest host has members; channel ``c`` belongs, on a host of
``n``, to its ``c % n``-th member. Control is a binomial tree over the first ranks of the hosts (the
parent of host ``i`` is ``i & (i - 1)``). News, of the world only, join each pair of first ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Link", "Purpose", "hosts_with", "plan_links"]


class Purpose(IntEnum):
    """What a connection is for."""

    CONTROL = 1
    DATA = 2
    NEWS = 3


@dataclass(frozen=True)
class Link:
    """A connection to ``peer``, a rank of the set's ``host``-th host; ``channel`` is for data."""

    purpose: Purpose
    host: int
    channel: int
    peer: int


def hosts_with(
    members: Sequence[int], hosts: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """The members of a set by host, in rising rank; hosts without any are left out."""
    wanted = set(members)
    groups = [tuple(sorted(wanted.intersection(host))) for host in hosts]
    return tuple(sorted(group for group in groups if group))


def plan_links(rank: int, hosts: Sequence[Sequence[int]], with_news: bool) -> list[Link]:
    """The links of ``rank``, one of the members in ``hosts``; none if that is one host."""
    own = next(index for index, host in enumerate(hosts) if rank in host)
    others = [index for index in range(len(hosts)) if index != own]
    links = []
    if rank == hosts[own][0]:
        near = [i for i in others if _parent(i) == own or _parent(own) == i]
        links += [Link(Purpose.CONTROL, i, 0, hosts[i][0]) for i in near]
        if with_news:
            links += [Link(Purpose.NEWS, i, 0, hosts[i][0]) for i in others]
    for channel in range(max(map(len, hosts))):
        if _owner(hosts[own], channel) == rank:
            links += [Link(Purpose.DATA, i, channel, _owner(hosts[i], channel)) for i in others]
    return links


def _parent(host: int) -> int:
    return host & (host - 1) if host > 0 else -1


def _owner(host: Sequence[int], channel: int) -> int:
    return host[channel % len(host)]
