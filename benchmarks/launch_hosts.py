"""Time in which horovodrun reaches many hosts by ssh, starts a worker on each and sees all end.

The hosts are namespaces of this machine, each with its own sshd, and the workers are ``true``. All
hosts share the cores of this machine: ssh, sshd and an agent's Python for each host. In a cluster
the launcher's machine has its ssh clients only. The peer is ssh alone, ``ssh HOST true`` to all
hosts at once: nothing that connects by ssh takes less. Needs root.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

from command_line import make_parser
from on_hosts import Network, SshServers, open_hosts
from report import OURS, Bar, Table, format_time, print_report

_COUNTS = (8, 64)
_SSH = "ssh HOST true"
_MOST_S = 10.0  # for 64 hosts
_MOST_OF_SSH = 2.0
_TIMEOUT_S = 300


def main() -> int:
    args = make_parser(__doc__, "one round").parse_args()
    last = f"{_COUNTS[-1]} hosts"
    bars = [Bar(last, None, _MOST_S), Bar(last, _SSH, _MOST_OF_SSH)]
    title = "from the command to the end of all workers"
    table = Table(title, [OURS, _SSH], format_time, bars)
    with open_hosts(_COUNTS[-1]) as (network, servers):
        for count in _COUNTS:
            wall = table.rows[f"{count} hosts"] = {OURS: [], _SSH: []}
            work = table.rows[f"{count} hosts, processor time of the launching side"] = {
                OURS: [],
                _SSH: [],
            }
            for _ in range(1 if args.quick else 3):
                for name, start in ((OURS, _launch), (_SSH, _ssh)):
                    wall_s, work_s = _measured(start, network, servers, count)
                    wall[name].append(wall_s)
                    work[name].append(work_s)
    return print_report([table], args.json)


def _measured(
    start: Callable[[Network, SshServers, int], None],
    network: Network,
    servers: SshServers,
    count: int,
) -> tuple[float, float]:
    """Seconds, and those that the started processes of this side have computed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin_s = time.monotonic()
    start(network, servers, count)
    wall_s = time.monotonic() - begin_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = [each.ru_utime + each.ru_stime for each in (after, before)]
    return wall_s, spent_s[0] - spent_s[1]


def _ssh(network: Network, servers: SshServers, count: int) -> None:
    hosts = network.hosts[:count]
    words = ["ssh", "-T", *servers.options]
    clients = [hosts[0].start([*words, host.name, "true"]) for host in hosts]
    for client in clients:  # the network ends what is late
        if client.wait(_TIMEOUT_S) != 0:
            raise RuntimeError(f"{client.args} failed with {client.returncode}")


def _launch(network: Network, servers: SshServers, count: int) -> None:
    hosts = network.hosts[:count]
    names = ",".join(f"{host.name}:1" for host in hosts)
    words = [sys.executable, "-m", "horovod.runner.launch", *servers.options]
    words += ["--start-timeout", str(_TIMEOUT_S), "-H", names, "-np", str(count), "true"]
    with hosts[0].start(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ)
    ) as job:
        out, _ = job.communicate(timeout=_TIMEOUT_S)
    if job.returncode != 0:
        raise RuntimeError(f"horovodrun on {count} hosts failed with {job.returncode}:\n{out}")


if __name__ == "__main__":
    sys.exit(main())
