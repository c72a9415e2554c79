"""``horovodrun --check-network``: one process on every host, pairs measured, a table printed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from horovod.launch.model.hosts import HostSlots, assign_ranks
from horovod.launch.network.links import judge, rounds_of
from horovod.launch.network.measure import measure_links
from horovod.launch.network.report import as_json, as_text
from horovod.launch.run.function import run
from horovod.launch.workers.machine import recognise

__all__ = ["check_network"]


def check_network(
    given: argparse.Namespace, hosts: Sequence[HostSlots] | None, interfaces: Sequence[str]
) -> int:
    """Measure, print, and return the exit status: 0, or 1 if a link is slow or cannot be used.

    ``hosts``: None for this machine. ``interfaces``: the only ones to use, or none for all. Blocks
    for about a second for each pair of hosts.

    Raises:
        ValueError: the hosts or the way to them cannot be.
    """
    places = _places(hosts)
    names = [slot.hostname for slot in assign_ranks(places, sum(h.slots for h in places))]
    try:
        by_rank = run(
            measure_links,
            (rounds_of(len(names)),),
            num_proc=len(names),
            hosts=",".join(f"{place.hostname}:{place.slots}" for place in places),
            ssh_port=given.ssh_port,
            ssh_identity_file=given.ssh_identity_file,
            network_interfaces=interfaces or None,
            start_timeout=None if given.start_timeout_s is None else float(given.start_timeout_s),
            verbose=given.verbose,
        )
    except RuntimeError as error:
        print(f"horovodrun: the network cannot be checked: {error}", file=sys.stderr)
        return 1
    links = sorted((link for links in by_rank for link in links), key=lambda link: link.pair)
    verdict = judge(links)
    if given.json:
        print(json.dumps(as_json(names, links, verdict), indent=2))
    else:
        print(as_text(names, links, verdict))
    return 0 if verdict.is_fine else 1


def _places(hosts: Sequence[HostSlots] | None) -> tuple[HostSlots, ...]:
    """One process for each host; two where there is but one, whose memory they share."""
    if hosts is None:
        return (HostSlots("localhost", 2),)
    merged, _ = recognise(hosts, [host.hostname for host in hosts])
    if len(merged) == 1:
        return (HostSlots(merged[0].hostname, 2),)
    return tuple(HostSlots(host.hostname, 1) for host in merged)
