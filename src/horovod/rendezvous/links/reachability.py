"""Who could connect to whom: what ranks report, and the table when that is not enough."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from horovod.core.base.checked import MOST_RANKS, Fields, printable
from horovod.core.base.ranks import ranks_text
from horovod.errors import InitError
from horovod.rendezvous.capabilities import RankCapabilities
from horovod.rendezvous.links.plan import Purpose

__all__ = ["Report", "Unreached", "decode_report", "encode_report", "failure_of"]

_MAX_ROWS = 48
_HEAD = ("from", "to", "address", "result")


@dataclass(frozen=True)
class Unreached:
    """(purpose, channel) of each missing link, and each address with what went wrong there."""

    links: list[tuple[int, int]]
    tries: list[tuple[str, str]]


@dataclass(frozen=True)
class Report:
    """How one rank's dialling went, by the ranks that it dialled."""

    rank: int
    reached: list[int] = field(default_factory=list)
    unreached: dict[int, Unreached] = field(default_factory=dict)


def encode_report(report: Report) -> bytes:
    """The report as it travels."""
    unreached = [
        {
            "peer": peer,
            "links": [{"purpose": p, "channel": c} for p, c in u.links],
            "tries": [{"address": a, "why": why} for a, why in u.tries],
        }
        for peer, u in report.unreached.items()
    ]
    fields = {"rank": report.rank, "reached": report.reached, "unreached": unreached}
    return json.dumps(fields).encode()


def decode_report(text: bytes, ranks: Container[int]) -> Report:
    """The report in ``text`` about some of ``ranks``; BadMessageError if it is none."""
    fields = Fields.read("report", text)

    def known(rank: int, name: str) -> int:
        if rank not in ranks:
            raise fields.error(name, rank, "a rank of those that meet")
        return rank

    def unreached(of: Fields) -> tuple[int, Unreached]:
        peer = known(of.integer("peer", 0, MOST_RANKS - 1), "unreached.peer")
        return peer, Unreached(of.each("links", _link), of.each("tries", _try))

    report = Report(
        known(fields.integer("rank", 0, MOST_RANKS - 1), "rank"),
        [known(rank, "reached") for rank in fields.integers("reached", 0, MOST_RANKS - 1)],
        dict(fields.each("unreached", unreached)),
    )
    fields.close()
    return report


def _link(fields: Fields) -> tuple[int, int]:
    purpose = fields.integer("purpose", min(Purpose), max(Purpose))
    return purpose, fields.integer("channel", 0, MOST_RANKS)


def _try(fields: Fields) -> tuple[str, str]:
    return printable(fields.text("address", 255)), printable(fields.text("why", 4096))


def failure_of(
    cards: Sequence[RankCapabilities], hosts: Sequence[Sequence[int]], reports: Sequence[Report]
) -> InitError:
    """The error with a table of who reaches whom, failures first; the same on every rank.

    Its ranks are all of the hosts that cannot connect to each other.
    """
    apart = {peer for report in reports for peer in report.unreached}
    apart |= {report.rank for report in reports if report.unreached}
    ranks = [rank for host in hosts if apart & set(host) for rank in host]
    return InitError(_failure_text(cards, hosts, reports), ranks=ranks)


def _failure_text(
    cards: Sequence[RankCapabilities], hosts: Sequence[Sequence[int]], reports: Sequence[Report]
) -> str:
    names = {
        rank: f"{cards[host[0]].hostname} ({ranks_text(host)})" for host in hosts for rank in host
    }
    failures = [
        (names[report.rank], names[peer], address, why)
        for report in reports
        for peer, unreached in report.unreached.items()
        for address, why in unreached.tries or [("-", "no address of a kind that both have")]
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
        "init: some hosts cannot connect to each other, in either direction. Who tried what:\n"
        f"{_table([_HEAD, *rows[:_MAX_ROWS]])}{more}\n"
        "In one direction at least, TCP connections to any unprivileged port must get through; "
        "HOROVOD_GLOO_IFACE names the network interfaces that may be used, if not all."
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
