"""Elastic jobs with all kinds of faults; afterwards every sample is checked.

``make chaos`` does the same at random, for hours.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from chaos_job import ChaosJob, JobError
from fault_plan import Fault, Limits
from fault_player import FaultPlayer
from histories import in_order
from rounds import problems_of


def play(folder: Path, limits: Limits, *faults: Fault, **options: Any) -> FaultPlayer:
    """The player after a job that has succeeded."""
    with ChaosJob(folder, limits, **options) as job:
        player = FaultPlayer(job)
        player.play(faults)
        job.finish()
    assert problems_of(job.watch.events) == []
    return player


def test_workers_are_killed_stopped_and_lost_with_their_hosts(tmp_path: Path) -> None:
    """Four of six workers at a time: with two warm spares faults can come fast."""
    hosts = {f"127.0.0.{number}": 1 for number in range(1, 7)}
    faults = (
        Fault("kill", after=7, pick=0.5),
        Fault("kill leader", after=5),
        Fault("kill two", after=11, pick=0.4),
        Fault("kill at", after=2, point="batch"),
        Fault("kill at", after=4, point="save", for_leader=True),
        Fault("kill in recovery", after=3, pick=0.9, point="restore", for_leader=True),
        Fault("kill in recovery", after=8, pick=0.6, point="middle", for_leader=True),
        Fault("kill in recovery", after=6, point="enter", for_leader=False, delay_s=0.02),
        Fault("host gone", after=9, pick=0.7),
        Fault("stop", after=5, pick=0.2),
    )
    player = play(tmp_path, Limits(min_np=2, max_np=4, hosts=hosts), *faults)
    assert [recovery.fault for recovery in player.recoveries] == list(faults)


def test_hosts_come_and_go_and_nothing_is_done_twice(tmp_path: Path) -> None:
    faults = (
        Fault("host added", after=7),
        Fault("discovery garbage", after=1),
        Fault("slots changed", after=5),
        Fault("discovery failing", after=1),
        Fault("host removed", after=11, pick=0.9),
        Fault("discovery slow", after=1),
        Fault("host removed", after=3, pick=0.0),
    )
    limits = Limits(min_np=1, max_np=4, hosts={"127.0.0.1": 1, "127.0.0.2": 1})
    # No rank stalls here, and on a busy machine a slow rank must not count as stalled.
    player = play(tmp_path, limits, *faults, settings={})
    assert [recovery.fault for recovery in player.recoveries] == list(faults)
    events = player.job.watch.events
    assert "restore" not in [event.kind for event in events]
    worlds = {event.world: event.size for event in in_order(events) if event.kind == "start"}
    assert list(worlds.values()) == [2, 3, 4, 3, 1]


def test_the_loss_of_all_workers_names_the_end_of_each_worker(tmp_path: Path) -> None:
    limits = Limits(min_np=1, max_np=2, hosts={"127.0.0.1": 1, "127.0.0.2": 1})
    with ChaosJob(tmp_path, limits) as job:
        job.wait_until(lambda: len(job.watch.members) == 2, "there is no world")
        members = job.watch.members
        for member in members:
            job.signal(member, signal.SIGKILL)
        with pytest.raises(JobError, match="has ended with 1"):
            job.wait_until(lambda: False, "killed")
        told = job.told()
    assert "horovodrun: all workers of world 1 have ended; the discovery's last answer" in told
    for member in members:
        assert f"(rank {member.rank}, {member.hostname}), pid {member.pid}, was ended by" in told
