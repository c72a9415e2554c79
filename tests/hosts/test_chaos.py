"""Elastic jobs on several hosts, whose links, workers and hosts are lost in turn.

Afterwards each sample is accounted for, as in ``tests/elastic``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_on_hosts import ChaosOnHosts
from fault_plan import Fault, Limits
from fault_player import FaultPlayer
from lab import Lab
from rounds import problems_of
from ssh_servers import SshServers


@pytest.fixture
def job(lab: Lab, ssh: SshServers, tmp_path: Path) -> Iterator[ChaosOnHosts]:
    folder = tmp_path / "chaos"
    folder.mkdir()
    limits = Limits(min_np=1, max_np=4, hosts={"host0": 1, "host1": 2, "host2": 1})
    with ChaosOnHosts(folder, limits, lab, ssh) as job:
        yield job


def test_links_hosts_and_workers_are_lost(job: ChaosOnHosts) -> None:
    player = FaultPlayer(job)
    player.play([Fault("kill in recovery", after=5, point="middle")])

    # Otherwise the host that is cut off may be the only one with the state.
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
