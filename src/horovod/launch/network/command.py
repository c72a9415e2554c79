"""``horovodrun --check-network``: measures links with one process on each host, prints a table."""

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
        print(f"horovodrun: the network cannot be checked: {error}", file=sys.stderr)
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
