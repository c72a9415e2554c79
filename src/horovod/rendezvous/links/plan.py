"""Which links a rank has to ranks of other hosts, and the error when some cannot be made. Pure.

*Channels* carry data. There are as many as the largest host has members, or as are asked for, if
these are more. On a host of ``n`` members channel ``c`` belongs to member ``c % n``. Control links
form a binomial tree over the first ranks of the hosts (the parent of host ``i`` is
``i & (i - 1)``). News links, of the world only, join each pair of first ranks. Both ends of a link
compute the same plan.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple

from horovod.core.base.checked import MOST_RANKS, BadMessageError, Record, between, listed, shown
from horovod.core.base.ranks import ranks_text
from horovod.errors import InitError
from horovod.rendezvous.capabilities import RankCapabilities

_MAX_ROWS = 48
_HEAD = ("from", "to", "address", "result")


class Purpose(IntEnum):
    """The purpose of a connection."""

    CONTROL = 1
    DATA = 2
    NEWS = 3


class Link(NamedTuple):
    """A connection to rank ``peer`` of the set's host ``host``. ``channel`` is 0 but for data."""

    purpose: Purpose
    host: int
    channel: int
    peer: int


def hosts_with(
    members: Sequence[int], hosts: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """The members of a set by host, in rising rank; hosts without members are left out."""
    wanted = set(members)
    groups = [tuple(sorted(wanted.intersection(host))) for host in hosts]
    return tuple(sorted(group for group in groups if group))


def plan_links(
    rank: int, hosts: Sequence[Sequence[int]], with_news: bool, least_channels: int = 1
) -> list[Link]:
    """The links of ``rank``, a member in ``hosts``; none if there is one host."""
    own = next(index for index, host in enumerate(hosts) if rank in host)
    others = [index for index in range(len(hosts)) if index != own]
    links = []
    if rank == hosts[own][0]:
        near = [i for i in others if _parent(i) == own or _parent(own) == i]
        links += [Link(Purpose.CONTROL, i, 0, hosts[i][0]) for i in near]
        if with_news:
            links += [Link(Purpose.NEWS, i, 0, hosts[i][0]) for i in others]
    for channel in range(max(least_channels, *map(len, hosts))):
        if _owner(hosts[own], channel) == rank:
            links += [Link(Purpose.DATA, i, channel, _owner(hosts[i], channel)) for i in others]
    return links


def _parent(host: int) -> int:
    return host & (host - 1) if host > 0 else -1


def _owner(host: Sequence[int], channel: int) -> int:
    return host[channel % len(host)]


@dataclass(frozen=True)
class MissingLink(Record):
    """A link that was not made."""

    purpose: Annotated[int, between(min(Purpose), max(Purpose))]
    channel: Annotated[int, between(0, MOST_RANKS)]


@dataclass(frozen=True)
class FailedTry(Record):
    """An address, and the reason why it failed."""

    address: Annotated[str, shown(255)]
    why: Annotated[str, shown(4096)]


@dataclass(frozen=True)
class Unreached(Record):
    """A rank that was not reached."""

    peer: Annotated[int, between(0, MOST_RANKS - 1)]
    links: Annotated[list[MissingLink], listed(MissingLink)]
    tries: Annotated[list[FailedTry], listed(FailedTry)]


@dataclass(frozen=True)
class Report(Record):
    """The ranks that ``rank`` has dialled: those that it reached, and those that it did not."""

    message = "report"

    rank: Annotated[int, between(0, MOST_RANKS - 1)]
    reached: tuple[int, ...]
    unreached: Annotated[list[Unreached], listed(Unreached)]

    @classmethod
    def about(cls, ranks: Container[int], text: bytes) -> Report:
        """The report in ``text``, which names no other ranks. Raises BadMessageError."""
        report = cls.from_bytes(text)
        for name, found in (
            ("rank", [report.rank]),
            ("reached", report.reached),
            ("unreached.peer", [each.peer for each in report.unreached]),
        ):
            for rank in found:
                if rank not in ranks:
                    raise BadMessageError("report", name, str(rank), "a rank of this bootstrap")
        return report


def failure_of(
    ranks: Sequence[RankCapabilities], hosts: Sequence[Sequence[int]], reports: Sequence[Report]
) -> InitError:
    """The error with a table of which hosts reach which, failures first; the same on every rank.

    Its ranks are those of all hosts that cannot connect to each other.
    """
    apart = {unreached.peer for report in reports for unreached in report.unreached}
    apart |= {report.rank for report in reports if report.unreached}
    named = [rank for host in hosts if apart & set(host) for rank in host]
    return InitError(_failure_text(ranks, hosts, reports), ranks=named)


def _failure_text(
    ranks: Sequence[RankCapabilities], hosts: Sequence[Sequence[int]], reports: Sequence[Report]
) -> str:
    names = {
        rank: f"{ranks[host[0]].hostname} ({ranks_text(host)})" for host in hosts for rank in host
    }
    failures = [
        (names[report.rank], names[unreached.peer], each.address, each.why)
        for report in reports
        for unreached in report.unreached
        for each in unreached.tries or [FailedTry("-", "no address of a kind that both have")]
    ]
    successes = {
        (names[report.rank], names[peer], "", "connected")
        for report in reports
        for peer in report.reached
    }
    rows = [*dict.fromkeys(failures), *sorted(successes)]
    left_out = len(rows) - _MAX_ROWS
    more = f"\n  and {left_out} more" if left_out > 0 else ""
    return (
        "init: some hosts cannot connect to each other, in either direction. The attempts were:\n"
        f"{_table([_HEAD, *rows[:_MAX_ROWS]])}{more}\n"
        "In one direction at least, TCP connections to any unprivileged port must be allowed; "
        "HOROVOD_GLOO_IFACE names the network interfaces that may be used, if not all of them."
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
