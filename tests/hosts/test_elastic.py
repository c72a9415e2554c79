"""Elastic jobs on several hosts: workers and links are lost, and come back."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from chaos_on_hosts import ChaosOnHosts
from fault_plan import Limits
from lab import ROOT, Lab, wait_until
from rounds import problems_of
from ssh_servers import SshServers
from traps import Trap

COUNTER = str(ROOT / "tests" / "integration" / "workers" / "elastic_counter.py")
# Time after which a silent network counts as lost.
SILENCE_S = "10"


class Counting:
    """A worker on each of three hosts; they count batches. The launcher is on host0."""

    def __init__(self, lab: Lab, ssh: SshServers, folder: Path) -> None:
        self.folder = folder
        self.said = folder / "said"
        words = [sys.executable, "-m", "horovod.runner.launch", *ssh.options, "--verbose"]
        words += ["-np", "3", "--min-np", "2", "--blacklist-cooldown-range", "1", "2"]
        words += ["-H", "host0:1,host1:1,host2:1", sys.executable, COUNTER, str(folder)]
        environment = {"OMP_NUM_THREADS": "1", "HOROVOD_GLOO_TIMEOUT_SECONDS": SILENCE_S}
        with self.said.open("wb") as said:
            self.process = lab.hosts[0].start(
                words,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, **lab.environment(), **environment},
            )

    def wait_for(self, is_there: Callable[[], object], what: str) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: bool(is_there() or self.process.poll() is not None), what)
        assert is_there(), f"{what}\n{self.said.read_text()}"

    def says(self, pattern: str) -> None:
        self.wait_for(lambda: re.search(pattern, self.said.read_text()), pattern)

    def goes_on_as(self, world: int, *hosts: str) -> None:
        """A world of these hosts has begun.

        Their order is open: the survivor with the newest commit is rank 0, and where one has
        committed a batch that the others lost, it is not the first host.
        """
        started = re.compile(rf"world {world} has {len(hosts)} workers on (.+)\n")

        def hosts_of_world() -> set[str]:
            found = started.search(self.said.read_text())
            return set(found[1].split(", ")) if found else set()

        self.wait_for(hosts_of_world, f"world {world} on {hosts}")
        assert hosts_of_world() == set(hosts)

    def counts_more(self, size: int) -> None:
        """Worker 0 continues in worlds of this size."""
        history = self.folder / "0.txt"

        def counted() -> int:
            text = history.read_text() if history.exists() else ""
            return len(re.findall(rf"^batch \d+ {size}$", text, re.MULTILINE))

        before = counted()
        self.wait_for(lambda: counted() > before + 10, f"more batches of {size}")

    def pid_of(self, worker_on: str) -> int:
        found = re.findall(rf"started rank \d on {worker_on} \(pid (\d+)\)", self.said.read_text())
        return int(found[-1])

    def end(self) -> None:
        (self.folder / "enough").touch()
        self.process.wait(60)
        assert self.process.returncode == 0, self.said.read_text()


@pytest.fixture
def counting(lab: Lab, ssh: SshServers, tmp_path: Path) -> Iterator[Counting]:
    folder = tmp_path / "counting"
    folder.mkdir()
    job = Counting(lab, ssh, folder)
    yield job
    if job.process.poll() is None:
        job.process.terminate()
    job.process.wait(120)


def test_a_worker_on_another_host_is_replaced(lab: Lab, counting: Counting) -> None:
    counting.counts_more(3)
    pid = counting.pid_of("host1")
    [worker] = [process for process in lab.hosts[1].processes() if is_worker(process)]
    assert pid > 0
    worker.send_signal(signal.SIGKILL)
    counting.says(r"host1.* was ended by SIGKILL; host1 is blacklisted for \d s")
    counting.goes_on_as(2, "host0", "host2")
    counting.counts_more(2)
    counting.goes_on_as(3, "host0", "host1", "host2")
    counting.counts_more(3)
    counting.end()


def is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return COUNTER in process.cmdline()
    return False  # it has ended


def test_a_link_is_lost_and_comes_back(lab: Lab, counting: Counting) -> None:
    counting.counts_more(3)
    lab.network.disconnect(lab.hosts[2])
    counting.goes_on_as(2, "host0", "host1")
    counting.counts_more(2)
    lab.network.connect(lab.hosts[2])
    counting.goes_on_as(3, "host0", "host1", "host2")
    counting.counts_more(3)
    counting.end()


@pytest.fixture
def job_on(lab: Lab, ssh: SshServers, tmp_path: Path) -> Iterator[Callable[..., ChaosOnHosts]]:
    """A job on these hosts, whose samples are accounted for."""
    with contextlib.ExitStack() as stack:

        def begin(**hosts: int) -> ChaosOnHosts:
            limits = Limits(min_np=1, max_np=3, hosts=hosts)
            job = stack.enter_context(ChaosOnHosts(tmp_path, limits, lab, ssh))
            job.wait_until(job.trains_together, "the world is not whole, or does nothing")
            return job

        yield begin


def test_a_blacklisted_host_keeps_the_only_worker_with_the_state(
    job_on: Callable[..., ChaosOnHosts],
) -> None:
    """Rank 0 dies while a new worker of another host has not got the state yet."""
    job = job_on(host0=2, host1=1)
    [other] = [member for member in job.watch.members if member.hostname == "host1"]
    job.signal(other, signal.SIGKILL)
    job.wait_until(lambda: job.has_gone_on_without("host1"), "it waits for the lost worker")
    job.lay(Trap("enter", signal.SIGKILL, for_leader=True))
    first = job.watch.members[0]
    job.wait_until(lambda: job.has_gone_on_without("host0"), "no worker has taken the state over")
    job.finish()
    assert problems_of(job.watch.events) == []
    assert [event.process for event in job.watch.events if event.kind == "trap"] == [first.process]
    assert re.search(r"host0 is blacklisted for \d s", (job.folder / "err").read_text())


def test_all_hosts_are_replaced_at_once(job_on: Callable[..., ChaosOnHosts]) -> None:
    """Without a loss: the old workers train until others can take over the state."""
    job = job_on(host0=2)
    job.discovery.set_hosts({"host1": 1, "host2": 1})
    job.wait_until(job.trains_together, "the world is not on the new hosts")
    job.finish()
    assert problems_of(job.watch.events) == []
    assert "restore" not in [event.kind for event in job.watch.events]
