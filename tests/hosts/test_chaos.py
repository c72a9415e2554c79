"""Elastic jobs on hosts of their own, whose links, workers and hosts are lost in turn.

Afterwards each sample is accounted for, as in ``tests/elastic``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from chaos_job import STALL_SETTINGS, ChaosJob
from fault_plan import Fault, Limits
from fault_player import FaultPlayer
from lab import Lab
from network import Host
from rounds import problems_of
from ssh_servers import SshServers
from watch import Member

pytestmark = pytest.mark.timeout(300)


class ChaosOnHosts(ChaosJob):
    """Its launcher is on the first host, its workers are on all of them."""

    def __init__(self, folder: Path, lab: Lab, ssh: SshServers) -> None:
        self._lab = lab
        limits = Limits(min_np=1, max_np=4, hosts={"host0": 1, "host1": 2, "host2": 1})
        super().__init__(
            folder,
            limits,
            # A network that is gone without a word is noticed after this.
            settings={**STALL_SETTINGS, "HOROVOD_GLOO_TIMEOUT_SECONDS": "2"},
            options=ssh.options,
            on_host=lab.hosts[0].command,
        )

    def signal(self, member: Member, signum: int) -> None:
        """A worker knows its number on its own host only."""
        for process in self._host(member.hostname).processes():
            with contextlib.suppress(psutil.Error, OSError):  # it has ended
                if _number_inside(process) == member.pid:
                    process.send_signal(signum)

    def pull_cable(self, hostname: str) -> None:
        """Nothing reaches the host any more."""
        self._lab.network.disconnect(self._host(hostname))

    def plug_in(self, hostname: str) -> None:
        """It can be reached again."""
        self._lab.network.connect(self._host(hostname))

    def trains_together(self) -> bool:
        """Whether all that there can be have done something in this world, so have its state."""
        return self.is_whole() and self.watch.batches_done(self.watch.world) > 5

    def has_gone_on_without(self, hostname: str) -> bool:
        """Whether the world is one without that host, and does something."""
        names = [member.hostname for member in self.watch.members]
        is_without = bool(names) and hostname not in names
        return is_without and self.watch.batches_done(self.watch.world) > 5

    def _host(self, hostname: str) -> Host:
        return next(host for host in self._lab.hosts if host.name == hostname)


def _number_inside(process: psutil.Process) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith("NSpid:"))


@pytest.fixture
def job(lab: Lab, ssh: SshServers, tmp_path: Path) -> Iterator[ChaosOnHosts]:
    folder = tmp_path / "chaos"
    folder.mkdir()
    with ChaosOnHosts(folder, lab, ssh) as job:
        yield job


def test_links_hosts_and_workers_are_lost(job: ChaosOnHosts) -> None:
    player = FaultPlayer(job)
    player.play([Fault("kill in recovery", after=5, point="middle")])

    # Or the host that is cut off may be the only one with the state.
    job.wait_until(job.trains_together, "the world is not whole, or does nothing")
    world, start = job.watch.world, time.monotonic()
    job.pull_cable("host2")
    print(f"next step after a cut: {job.until_next_step(start, world):.2f} s")
    job.wait_until(lambda: job.has_gone_on_without("host2"), "it waits for the lost host")
    job.plug_in("host2")
    player.wait_for_all()

    player.play([Fault("host gone", after=3, pick=0.5), Fault("stop", pick=0.4, is_hasty=True)])
    for recovery in player.recoveries:
        print(recovery)
    assert len(player.recoveries) == 3
    job.finish()
    assert problems_of(job.watch.events) == []
