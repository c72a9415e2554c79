"""Starts workers on several hosts, which ``tests/hosts/support`` makes on this machine.

``RanksOnHosts`` is the ``Starter`` of a worker group whose ranks are spread evenly over hosts of
the network; the driver's sockets are files, which the hosts share.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "hosts" / "support"))

from job_store import JobStore
from long_cable import Distance, long_cable
from network import BURST_BYTES, Host, Network, missing, plain_cabling
from ranks import slots_of
from ssh_servers import SshServers, missing_ssh
from worker_groups import Commands

__all__ = [
    "BURST_BYTES",
    "Distance",
    "Network",
    "RanksOnHosts",
    "SshServers",
    "add_distance",
    "distance_of",
    "long_cable",
    "open_hosts",
]

_BIN = Path(sys.executable).parent


def add_distance(parser: argparse.ArgumentParser, mbit_per_s: int) -> None:
    """The options of a long cable; ``mbit_per_s``: the default of its rate."""
    parser.add_argument("--mbit-per-s", type=int, default=mbit_per_s, help="of the cable")
    parser.add_argument("--delay-ms", type=float, default=100, help="of a round trip")
    parser.add_argument("--loss-percent", type=float, default=0.1, help="of packets")


def distance_of(args: argparse.Namespace, cables: int = 1) -> Distance:
    """What each of the ``cables`` between two hosts adds."""
    delay_s, loss = args.delay_ms / 2000, args.loss_percent / 100
    return Distance(delay_s / cables, loss / cables, args.mbit_per_s)


@contextmanager
def open_hosts(count: int) -> Iterator[tuple[Network, SshServers]]:
    """Hosts that reach each other by ssh; ``RuntimeError`` if they cannot be made."""
    if reason := missing() or missing_ssh():
        raise RuntimeError(reason)
    with Network(plain_cabling(count)) as network, SshServers(network) as servers:
        yield network, servers


class RanksOnHosts:
    """Starts ``ranks_per_host`` ranks on each host of ``network``; ``close`` ends the stores."""

    def __init__(self, network: Network, servers: SshServers, ranks_per_host: int) -> None:
        self._hosts = network.hosts
        self._servers = servers
        self._ranks_per_host = ranks_per_host
        self._stores = ExitStack()

    def __call__(
        self, launcher: str, rank_count: int, words: Sequence[str], store: str
    ) -> Commands:
        if rank_count != self._ranks_per_host * len(self._hosts):
            raise ValueError(f"{rank_count} ranks on {len(self._hosts)} hosts")
        words = [sys.executable, *words]
        if launcher == "openmpi":
            return [self._open_mpi(words)]
        if launcher == "horovodrun":
            return self._horovod(words, Path(f"{store}.reports"))
        if launcher == "processes":
            return self._processes(words, store)
        raise ValueError(f"no launcher {launcher!r} on hosts")

    def close(self) -> None:
        """Close the stores of the workers' jobs."""
        self._stores.close()

    def _processes(self, words: Sequence[str], store: str) -> Commands:
        commands = []
        for rank, host in enumerate(self._host_of_each_rank()):
            environment = {
                "BENCH_RANK": str(rank),
                "BENCH_SIZE": str(self._ranks_per_host * len(self._hosts)),
                "BENCH_STORE": store,
                "BENCH_ADDRESS": host.address,
                "GLOO_SOCKET_IFNAME": host.interfaces[0].name,
            }
            commands.append((host.command(words), environment))
        return commands

    def _horovod(self, words: Sequence[str], reports: Path) -> Commands:
        store = JobStore(self._hosts[0], reports)
        self._stores.callback(store.close)
        slots = slots_of(self._hosts, [self._ranks_per_host] * len(self._hosts))
        pairs = zip(self._host_of_each_rank(), slots, strict=True)
        return [(host.command(words), store.variables(slot)) for host, slot in pairs]

    def _open_mpi(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        mpiexec = _BIN / "mpiexec"
        if not mpiexec.exists():
            raise RuntimeError(f"{mpiexec} is missing: `make bench` installs what it needs")
        first = self._hosts[0]
        counts = ",".join(f"{host.name}:{self._ranks_per_host}" for host in self._hosts)
        settings = {"btl_tcp_if_include": first.interfaces[0].name}
        if self._ranks_per_host * len(self._hosts) > (os.cpu_count() or 1):
            settings["mpi_yield_when_idle"] = "1"  # the hosts share cores and do not know it
        command = [str(mpiexec), "--allow-run-as-root", "--prefix", str(_BIN.parent)]
        command += ["--prtemca", "plm_ssh_agent", " ".join(["ssh", *self._servers.options])]
        command += ["--host", counts, "--map-by", "slot"]
        for name, value in settings.items():
            command += ["--mca", name, value]
        return first.command([*command, *words]), {}

    def _host_of_each_rank(self) -> list[Host]:
        return [host for host in self._hosts for _ in range(self._ranks_per_host)]
