"""The result of a network check as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from horovod.launch.network.links import Link, Pair, Verdict

__all__ = ["as_json", "as_text"]

_WIDTH = 120


def as_json(hosts: Sequence[str], links: Sequence[Link], verdict: Verdict) -> dict[str, Any]:
    """The whole result; seconds and bytes per second."""
    return {
        "is_fine": verdict.is_fine,
        "hosts": list(dict.fromkeys(hosts)),
        "slow_hosts": [hosts[host] for host in verdict.slow_hosts],
        "links": [_link_json(hosts, link, verdict) for link in links],
    }


def _link_json(hosts: Sequence[str], link: Link, verdict: Verdict) -> dict[str, Any]:
    described: dict[str, Any] = {"hosts": [hosts[host] for host in link.pair]}
    if link.problem:
        return {**described, "state": "unreachable", "reason": link.problem}
    reason = verdict.slow.get(link.pair, "")
    return {
        **described,
        "state": "slow" if reason else "fine",
        "reason": reason,
        "transport": link.transport,
        "latency_s": link.latency_s,
        "bandwidth_bytes_per_s": link.bandwidth,
    }


def as_text(hosts: Sequence[str], links: Sequence[Link], verdict: Verdict) -> str:
    """The table, and sentences about slow and unreachable links."""
    file = StringIO()
    console = Console(file=file, width=_WIDTH, highlight=False, emoji=False, markup=False)
    console.print(_table(hosts, links, verdict))
    sentences = "\n".join(_sentences(hosts, links, verdict))
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    return "\n".join([*lines, "", sentences])


def _table(hosts: Sequence[str], links: Sequence[Link], verdict: Verdict) -> Table:
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    table.add_column("Link")
    table.add_column("Over")
    table.add_column("Latency", justify="right")
    table.add_column("Bandwidth", justify="right")
    table.add_column("")
    for link in links:
        figures = [link.transport, _latency(link.latency_s), _bandwidth(link.bandwidth)]
        note = f"slow: {verdict.slow[link.pair]}" if link.pair in verdict.slow else ""
        if link.problem:
            figures, note = ["", "", ""], "cannot be used, see below"
        # As Text, so that brackets in a name are no markup.
        table.add_row(*map(Text, (_name(hosts, link.pair), *figures, note)))
    return table


def _sentences(hosts: Sequence[str], links: Sequence[Link], verdict: Verdict) -> list[str]:
    if verdict.is_fine:
        one = len(links) == 1
        return [f"{'The link is' if one else f'All {len(links)} links are'} fine."]
    sentences = [
        f"{_name(hosts, link.pair)} cannot be used: {link.problem}" for link in verdict.unreachable
    ]
    for host in verdict.slow_hosts:
        sentences.append(
            f"{hosts[host]} is slow with every other host: look at its network card, its cable or "
            "port of the switch, its routes, and what else runs there."
        )
    for pair, reason in verdict.slow.items():
        if not set(pair).intersection(verdict.slow_hosts):
            sentences.append(
                f"{_name(hosts, pair)} is slow: {reason}. Both hosts are faster with others: look "
                "at what lies between these two."
            )
    return sentences


def _name(hosts: Sequence[str], pair: Pair) -> str:
    first, second = hosts[pair[0]], hosts[pair[1]]
    return f"{first}, two processes" if first == second else f"{first} - {second}"


def _latency(seconds: float) -> str:
    microseconds = seconds * 1e6
    return f"{microseconds:.1f} us" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"


def _bandwidth(bytes_per_s: float) -> str:
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_per_s >= factor:
            return f"{bytes_per_s / factor:.2f} {unit}"
    return f"{bytes_per_s / 1e3:.2f} kB/s"
