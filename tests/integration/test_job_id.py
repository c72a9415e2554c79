"""Elastic jobs with an id: horovodrun is killed, and another one takes over its workers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from elastic_jobs import Job, counts
from fake_hosts import FakeHosts
from launching import TIMEOUT_S

pytestmark = pytest.mark.timeout(TIMEOUT_S)

OPTIONS = ["--min-np", "1", "--blacklist-cooldown-range", "1", "2", "--job-id", "counting"]


class World:
    """Jobs of one user, on this machine and one reached by ssh."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        (folder / "fake").mkdir()
        self.hosts = FakeHosts(folder / "fake")
        self.hosts.first("host-a", f"settings=XDG_STATE_HOME={self.state}")
        self.drivers: list[Job] = []

    def start(self, *options: str) -> Job:
        environ = {**self.hosts.environ, "XDG_STATE_HOME": str(self.state)}
        job = Job(self.folder, *OPTIONS, *options, env=environ)
        if self.drivers:
            job.pids = self.drivers[-1].pids
        self.drivers.append(job)
        return job

    def cut(self, hostname: str) -> None:
        """End the connection with a host."""
        for process, arguments in self.hosts.command_lines().items():
            if (
                hostname in arguments
                and "import main; main()" in arguments[2]
                and "remote.proxy" in arguments[2]
            ):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    @property
    def left(self) -> list[Path]:
        jobs = self.state / "horovod" / "jobs"
        return list(jobs.rglob("*")) if jobs.exists() else []

    def kill(self, driver: Job) -> None:
        driver.process.kill()
        driver.process.wait(TIMEOUT_S)

    def close(self) -> None:
        for driver in self.drivers:
            driver.process.kill()
            driver.process.communicate()
        for process in self.hosts.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def progress(job: Job, size: int, more: int = 20) -> None:
    before = counts(job.history(0), size)
    job.watch(0, lambda history: counts(history, size) > before + more)


def read(job: Job, *patterns: str) -> None:
    """Its lines until all of these have appeared, in any order."""
    for pattern in patterns:
        if not any(re.search(pattern, line) for line in job.lines):
            job.line(pattern)


def test_other_drivers_take_over(world: World) -> None:
    where = ["-np", "2", "-H", "localhost:1,host-a:1"]
    first = world.start(*where)
    first.line("started rank 1")
    progress(first, 2)
    refused = world.start(*where)
    refused.line(r"--job-id: job counting is run by process \d+ on .*, which lives")
    world.kill(first)
    progress(first, 2)  # without a launcher nothing changes
    other = world.start("-np", "2", "-H", "localhost:2")
    other.line("job counting did not end; it was begun by horovod .* as: .*elastic_counter.py")

    second = world.start(*where)
    read(second, "job counting is taken over", "found rank 1 on host-a")
    progress(second, 2)
    world.cut("host-a")
    second.line("host-a: connecting again, since ssh was ended by SIGKILL")
    second.line("found rank 1 on host-a")  # once more
    progress(second, 2)
    assert not [line for line in second.history(0) if line.startswith("reset")]
    world.kill(second)
    os.kill(first.pids[1], signal.SIGKILL)

    third = world.start(*where)
    read(third, "job counting is taken over", "rank 1 on host-a .* was ended by SIGKILL")
    read(third, r"world \d has 2 workers on localhost, host-a")
    progress(third, 2)
    status, output = third.end()
    assert status == 0, output
    assert sorted(re.findall(r"\[(\d)\]<stdout>:counted", output)) == ["0", "1"]
    world.hosts.assert_empty()
    assert world.left == []


def test_workers_that_no_driver_takes_over_end(world: World) -> None:
    arguments = ["-np", "2", "-H", "localhost:2", "--elastic-timeout", "10"]
    first = world.start(*arguments)
    first.line("started rank 1")
    progress(first, 2)
    world.kill(first)
    world.hosts.assert_empty()
    log = world.state / "horovod" / "jobs" / "counting" / "host-localhost" / "log"
    assert "no horovodrun has come in time; ending the 2 workers that are left" in log.read_text()

    second = world.start(*arguments)
    second.line("job counting begins anew: none of its workers is left")
    second.line("started rank 1")
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(TIMEOUT_S) == 143
    world.hosts.assert_empty()
    assert world.left == []
