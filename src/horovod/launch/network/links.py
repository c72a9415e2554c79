"""Which pairs of hosts are measured when, and which of their links are slow. Pure functions.

A *round* is a list of pairs that are measured at the same time; no host is in two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Link", "Pair", "Verdict", "judge", "rounds_of"]

Pair = tuple[int, int]

# So many hosts at most get all their pairs measured, and one after another.
MOST_HOSTS_FOR_ALL = 8
# Above that, each host is measured with so many others.
_ROUNDS = 7
_SLOW = 2.0
# A difference in latency that timing alone can make.
_NOISE_S = 500e-6


@dataclass(frozen=True)
class Link:
    """What was found between two hosts: figures, or the ``problem`` that prevented them.

    ``bandwidth`` counts bytes per second in each direction, both at a time.
    """

    pair: Pair
    transport: str = ""
    latency_s: float = 0.0
    bandwidth: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class Verdict:
    """Slow links with the reason for each, links without figures, hosts slow on every link."""

    slow: dict[Pair, str]
    unreachable: tuple[Link, ...]
    slow_hosts: tuple[int, ...]

    @property
    def is_fine(self) -> bool:
        """Whether every link that was to be measured works as the others do."""
        return not self.slow and not self.unreachable


def rounds_of(host_count: int) -> list[list[Pair]]:
    """The rounds for so many hosts: every pair alone, or among many hosts some pairs at a time."""
    rounds = _tournament(host_count)
    if host_count > MOST_HOSTS_FOR_ALL:
        return rounds[:_ROUNDS]
    return [[pair] for pair in sorted(pair for pairs in rounds for pair in pairs)]


def _tournament(count: int) -> list[list[Pair]]:
    """Everybody meets everybody once: all stand in a circle, and all but the first move on."""
    seats: list[int | None] = list(range(count))
    if count % 2:
        seats.append(None)
    half = len(seats) // 2
    rounds = []
    for _ in range(len(seats) - 1):
        couples = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in couples if a is not None is not b])
        seats.insert(1, seats.pop())
    return rounds


def judge(links: Sequence[Link]) -> Verdict:
    """What is wrong with these links, each compared with those of the same transport."""
    slow: dict[Pair, str] = {}
    slow_hosts: set[int] = set()
    measured = [link for link in links if not link.problem]
    for transport in dict.fromkeys(link.transport for link in measured):
        alike = [link for link in measured if link.transport == transport]
        hosts = _slow_hosts(alike)
        slow_hosts |= hosts
        # A slow host makes each of its links slow, which says nothing about the others.
        usual = [link for link in alike if not hosts.intersection(link.pair)]
        for link in alike:
            if reason := _slowness(link, usual):
                slow[link.pair] = reason
    unreachable = tuple(link for link in links if link.problem)
    return Verdict(slow, unreachable, tuple(sorted(slow_hosts)))


def _slow_hosts(links: Sequence[Link]) -> set[int]:
    """Hosts that are fast with nobody, although others are."""
    best: dict[int, float] = {}
    count: dict[int, int] = {}
    for link in links:
        for host in link.pair:
            best[host] = max(best.get(host, 0.0), link.bandwidth)
            count[host] = count.get(host, 0) + 1
    fastest = max(best.values(), default=0.0)
    return {host for host in best if count[host] > 1 and best[host] * _SLOW < fastest}


def _slowness(link: Link, usual: Sequence[Link]) -> str:
    """Why ``link`` is slow beside ``usual`` ones; empty if it is not."""
    bandwidth = median(other.bandwidth for other in usual)
    if link.bandwidth * _SLOW < bandwidth:
        return f"{link.bandwidth / bandwidth:.0%} of the usual bandwidth"
    latency_s = median(other.latency_s for other in usual)
    if link.latency_s > max(latency_s * _SLOW, latency_s + _NOISE_S):
        return f"{link.latency_s / latency_s:.1f} times the usual latency"
    return ""
