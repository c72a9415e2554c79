"""An elastic job on several hosts, with a discovery script and traps; see ``ChaosJob``."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
from chaos_job import STALL_SETTINGS, ChaosJob
from fault_plan import Limits
from lab import Lab
from network import Host
from ssh_servers import SshServers
from watch import Member

__all__ = ["ChaosOnHosts"]


class ChaosOnHosts(ChaosJob):
    """Its launcher is on the first host, its workers are on all of them."""

    def __init__(self, folder: Path, limits: Limits, lab: Lab, ssh: SshServers) -> None:
        self._lab = lab
        super().__init__(
            folder,
            limits,
            # Time after which a silent network counts as lost.
            settings={**STALL_SETTINGS, "HOROVOD_GLOO_TIMEOUT_SECONDS": "2"},
            options=ssh.options,
            on_host=lab.hosts[0].command,
        )

    def signal(self, member: Member, signum: int) -> None:
        """A worker knows its pid inside its own host only."""
        for process in self._host(member.hostname).processes():
            with contextlib.suppress(psutil.Error, OSError):  # it has ended
                if _number_inside(process) == member.pid:
                    process.send_signal(signum)

    def pull_cable(self, hostname: str) -> None:
        """Cut the host off."""
        self._lab.network.disconnect(self._host(hostname))

    def plug_in(self, hostname: str) -> None:
        """Connect the host again."""
        self._lab.network.connect(self._host(hostname))

    def trains_together(self) -> bool:
        """Whether all possible workers have made progress in this world, so have its state."""
        return self.is_whole() and self.watch.batches_done(self.watch.world) > 5

    def has_gone_on_without(self, hostname: str) -> bool:
        """Whether the world is without that host and makes progress."""
        names = [member.hostname for member in self.watch.members]
        is_without = bool(names) and hostname not in names
        return is_without and self.watch.batches_done(self.watch.world) > 5

    def _host(self, hostname: str) -> Host:
        return next(host for host in self._lab.hosts if host.name == hostname)


def _number_inside(process: psutil.Process) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith("NSpid:"))
