"""The schedule of a network check, and the verdict on its links. Pure functions.

A *round* is a list of pairs that are measured at the same time; each host is in at most one pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

Pair = tuple[int, int]

# Up to this number of hosts all pairs are measured, one after the other.
MOST_HOSTS_FOR_ALL = 8
# With more hosts, each host is measured with so many others.
_ROUNDS = 7
_SLOW = 2.0
# Differences of latency below this are noise.
_NOISE_S = 500e-6
# More connections are advised if they carry so many times as much, and no more of them than bring
# the bandwidth so near to the best one.
_WORTHWHILE = 1.3
_NEAR = 1.2


@dataclass(frozen=True)
class Link:
    """The figures of a link between two hosts, or the ``problem`` that prevented them.

    ``bandwidth`` is in bytes per second in each direction, both at the same time.
    ``resent_share``: of packets meanwhile. A long link has figures ``with_more`` connections, too:
    the bandwidth by their number.
    """

    pair: Pair
    transport: str = ""
    latency_s: float = 0.0
    bandwidth: float = 0.0
    problem: str = ""
    resent_share: float = 0.0
    with_more: Mapping[int, float] = field(default_factory=dict)

    @property
    def advised_connections(self) -> int:
        """The least number that comes near the best bandwidth; 1 if more gain little."""
        found = {1: self.bandwidth, **self.with_more}
        best = max(found.values())
        if best < _WORTHWHILE * self.bandwidth:
            return 1
        return min(count for count, each in found.items() if each * _NEAR >= best)


class Verdict(NamedTuple):
    """Slow links with reasons, links without figures, and hosts that are slow on every link."""

    slow: dict[Pair, str]
    unreachable: tuple[Link, ...]
    slow_hosts: tuple[int, ...]

    @property
    def is_fine(self) -> bool:
        """Whether no link is slow or unreachable."""
        return not self.slow and not self.unreachable


def rounds_of(host_count: int) -> list[list[Pair]]:
    """The rounds for this number of hosts: single pairs, or several pairs at a time."""
    rounds = _tournament(host_count)
    if host_count > MOST_HOSTS_FOR_ALL:
        return rounds[:_ROUNDS]
    return [[pair] for pair in sorted(pair for pairs in rounds for pair in pairs)]


def _tournament(count: int) -> list[list[Pair]]:
    """A round-robin tournament by the circle method: each pair is in one round."""
    circle: list[int | None] = list(range(count))
    if count % 2:
        circle.append(None)
    half = len(circle) // 2
    rounds = []
    for _ in range(len(circle) - 1):
        couples = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in couples if a is not None is not b])
        circle.insert(1, circle.pop())
    return rounds


def judge(links: Sequence[Link]) -> Verdict:
    """The verdict on these links; each is compared with those of the same transport."""
    slow: dict[Pair, str] = {}
    slow_hosts: set[int] = set()
    measured = [link for link in links if not link.problem]
    for transport in dict.fromkeys(link.transport for link in measured):
        alike = [link for link in measured if link.transport == transport]
        hosts = _slow_hosts(alike)
        slow_hosts |= hosts
        # All links of a slow host are slow, so they do not count for the usual figures.
        usual = [link for link in alike if not hosts.intersection(link.pair)]
        for link in alike:
            if reason := _slowness(link, usual):
                slow[link.pair] = reason
    unreachable = tuple(link for link in links if link.problem)
    return Verdict(slow, unreachable, tuple(sorted(slow_hosts)))


def _slow_hosts(links: Sequence[Link]) -> set[int]:
    """Hosts without a fast link, although other hosts have one."""
    found: dict[int, list[float]] = {}
    for link in links:
        for host in link.pair:
            found.setdefault(host, []).append(link.bandwidth)
    fastest = max(map(max, found.values()), default=0.0)
    return {host for host, each in found.items() if len(each) > 1 and max(each) * _SLOW < fastest}


def _slowness(link: Link, usual: Sequence[Link]) -> str:
    """Why ``link`` is slow beside ``usual`` ones; empty if it is not."""
    bandwidth = median(other.bandwidth for other in usual)
    if link.bandwidth * _SLOW < bandwidth:
        return f"{link.bandwidth / bandwidth:.0%} of the usual bandwidth"
    latency_s = median(other.latency_s for other in usual)
    if link.latency_s > max(latency_s * _SLOW, latency_s + _NOISE_S):
        return f"{link.latency_s / latency_s:.1f} times the usual latency"
    return ""
