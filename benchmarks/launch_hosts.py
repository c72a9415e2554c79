"""Time in which horovodrun reaches many hosts by ssh, starts a worker on each and sees all end.

The hosts are namespaces of this machine, each with its own sshd, and the workers are ``true``. All
hosts share the cores of this machine: ssh, sshd and an agent's Python for each host. In a cluster
the launcher's machine has its ssh clients only. Needs root.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

from command_line import make_parser
from on_hosts import Network, SshServers, open_hosts
from report import OURS, Bar, Table, format_time, print_report

_COUNTS = (8, 64)
_MOST_S = 10.0  # for 64 hosts
_TIMEOUT_S = 300


def main() -> int:
    args = make_parser(__doc__, "one round").parse_args()
    bars = [Bar(f"{_COUNTS[-1]} hosts", None, _MOST_S)]
    table = Table("from the command to the end of all workers", [OURS], format_time, bars)
    with open_hosts(_COUNTS[-1]) as (network, servers):
        for count in _COUNTS:
            times = [_launch(network, servers, count) for _ in range(1 if args.quick else 3)]
            table.rows[f"{count} hosts"] = {OURS: [wall_s for wall_s, _ in times]}
            work = {OURS: [work_s for _, work_s in times]}
            table.rows[f"{count} hosts, processor time of horovodrun and its ssh clients"] = work
    return print_report([table], args.json)


def _launch(network: Network, servers: SshServers, count: int) -> tuple[float, float]:
    """Seconds, and those that the launcher and its children have computed."""
    hosts = network.hosts[:count]
    names = ",".join(f"{host.name}:1" for host in hosts)
    words = [sys.executable, "-m", "horovod.runner.launch", *servers.options]
    words += ["--start-timeout", str(_TIMEOUT_S), "-H", names, "-np", str(count), "true"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin_s = time.monotonic()
    with hosts[0].start(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ)
    ) as job:
        out, _ = job.communicate(timeout=_TIMEOUT_S)
    wall_s = time.monotonic() - begin_s
    if job.returncode != 0:
        raise RuntimeError(f"horovodrun on {count} hosts failed with {job.returncode}:\n{out}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = [each.ru_utime + each.ru_stime for each in (after, before)]
    return wall_s, spent_s[0] - spent_s[1]


if __name__ == "__main__":
    sys.exit(main())
