"""``horovodrun --check-network``: measures links with one process on each host, prints a table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from io import StringIO
from typing import Any

from rich.table import Table

from horovod.launch.doctor.tables import plain_console, plain_table
from horovod.launch.model.hosts import HostSlots, assign_ranks
from horovod.launch.network.links import Link, Pair, Verdict, judge, rounds_of
from horovod.launch.network.measure import measure_links
from horovod.launch.run.call_error import reason_of
from horovod.launch.run.function import run
from horovod.launch.workers.machine import recognise

_WIDTH = 120


def check_network(
    given: argparse.Namespace, hosts: Sequence[HostSlots] | None, interfaces: Sequence[str]
) -> int:
    """Measure, print, and return the exit status: 1 if a link is slow or cannot be used, else 0.

    ``hosts`` is None for this machine; no ``interfaces`` means all. Blocks for about a second for
    each pair of hosts.

    Raises:
        ValueError: the hosts or the options for them are invalid.
    """
    slots = _one_process_each(hosts)
    names = [slot.hostname for slot in assign_ranks(slots, sum(h.slots for h in slots))]
    try:
        by_rank = run(
            measure_links,
            (rounds_of(len(names)),),
            num_proc=len(names),
            hosts=",".join(f"{host.hostname}:{host.slots}" for host in slots),
            ssh_port=given.ssh_port,
            ssh_identity_file=given.ssh_identity_file,
            network_interfaces=interfaces or None,
            start_timeout=None if given.start_timeout_s is None else float(given.start_timeout_s),
            verbose=given.verbose,
        )
    except RuntimeError as error:
        print(f"horovodrun: the network cannot be checked: {reason_of(error)}", file=sys.stderr)
        return 1
    links = sorted((link for links in by_rank for link in links), key=lambda link: link.pair)
    verdict = judge(links)
    if given.json:
        print(json.dumps(as_json(names, links, verdict), indent=2))
    else:
        print(as_text(names, links, verdict))
    return 0 if verdict.is_fine else 1


def _one_process_each(hosts: Sequence[HostSlots] | None) -> tuple[HostSlots, ...]:
    """One process on each host; two on a single host, which share its memory."""
    if hosts is None:
        return (HostSlots("localhost", 2),)
    merged, _ = recognise(hosts, [host.hostname for host in hosts])
    if len(merged) == 1:
        return (HostSlots(merged[0].hostname, 2),)
    return tuple(HostSlots(host.hostname, 1) for host in merged)


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
        "resent_share": link.resent_share,
        "advised_connections": link.advised_connections,
    }


def as_text(hosts: Sequence[str], links: Sequence[Link], verdict: Verdict) -> str:
    """The table, and sentences about slow and unreachable links."""
    file = StringIO()
    plain_console(file=file, width=_WIDTH).print(_table(hosts, links, verdict))
    sentences = "\n".join([*_sentences(hosts, links, verdict), *_advice(hosts, links)])
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    return "\n".join([*lines, "", sentences])


def _table(hosts: Sequence[str], links: Sequence[Link], verdict: Verdict) -> Table:
    table = plain_table("Link", "Over")
    table.add_column("Latency", justify="right")
    table.add_column("Bandwidth", justify="right")
    table.add_column("")
    for link in links:
        figures = [link.transport, _latency(link.latency_s), _bandwidth(link.bandwidth)]
        note = f"slow: {verdict.slow[link.pair]}" if link.pair in verdict.slow else ""
        if link.problem:
            figures, note = ["", "", ""], "cannot be used, see below"
        table.add_row(_name(hosts, link.pair), *figures, note)
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


def _advice(hosts: Sequence[str], links: Sequence[Link]) -> list[str]:
    """What helps long links."""
    return [
        f"{_name(hosts, link.pair)} is long ({link.resent_share:.2%} of packets were sent again): "
        f"with --link-connections {count} it carries {_bandwidth(link.with_more[count])}."
        for link in links
        if (count := link.advised_connections) > 1
    ]


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
