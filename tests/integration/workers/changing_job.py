"""A job in a job loop of the launcher, while its workers and hosts join and leave.

Two workers at a time, one here and one on host-a, are replaced as often as the first argument says;
then host-b appears and is lost, host-a is dismissed, and a child of the job's own ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import psutil

from horovod.core.base.rank_info import RankInfo
from horovod.launch.jobs.job_loop import JobLoop, open_job_loop
from horovod.launch.model.host_plan import HostPlan, Rendezvous, WorkerSpec
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.launch.model.ssh import SshOptions
from horovod.launch.remote.remote_group import RemoteWorkerGroup
from horovod.launch.workers.processes import spawn
from horovod.launch.workers.python_command import remote_python_command
from horovod.launch.workers.worker_group import Trouble, Worker, WorkerGroup
from horovod.rendezvous.store.server import StoreServer

SECRET = os.urandom(32)
LINE = 'echo "number $NUMBER"; [ -z "$STAYS" ] || exec sleep 1000'


class ChangingJob:
    """``_script`` yields conditions; each must be true before it continues."""

    def __init__(self, loop: JobLoop, store: tuple[str, int], rounds: int) -> None:
        self._loop = loop
        self._store = store
        self._rounds = rounds
        self._running: dict[int, Worker] = {}
        self._lost: list[str] = []
        self._number = 0
        self._here = loop.local_group(self)
        self._here.prepare(self._plan("localhost"), Rendezvous(*store, SECRET))
        self._steps = self._script()
        self._is_due: Callable[[], bool] = lambda: True
        self.deadline: float | None = time.monotonic()

    def turn(self) -> None:
        while not self._loop.is_ending and self._is_due():
            self._is_due = next(self._steps)
        self.deadline = None

    def _script(self) -> Iterator[Callable[[], bool]]:
        there = self._connect("host-a")
        yield lambda: there.is_connected
        there.prepare(self._plan("host-a"))
        yield from self._replace_workers(there)
        yield from self._lose_a_host()
        self._start(there, stays=True)
        yield lambda: len(self._running) == 1
        there.dismiss()
        yield lambda: there.is_closed
        self._loop.say(f"host-a has left with {len(self._running)} workers running")
        yield from self._wait_for_a_child()
        self._start(self._here, stays=True)
        yield lambda: len(self._running) == 1
        self._loop.end(JobOutcome(3, "horovodrun: enough\n"))
        yield lambda: False

    def _replace_workers(self, there: RemoteWorkerGroup) -> Iterator[Callable[[], bool]]:
        launcher, agent = psutil.Process(), agent_of(there)
        sizes = []
        for _ in range(self._rounds):
            self._start(self._here)
            self._start(there)
            yield lambda: there.is_started and not (self._here.workers or there.workers)
            sizes.append(launcher.num_fds() + agent.num_fds())
        # An agent may not have removed the last worker yet.
        self._loop.say(f"kept for the replaced: {max(sizes) - min(sizes) >= self._rounds}")

    def _lose_a_host(self) -> Iterator[Callable[[], bool]]:
        group = self._connect("host-b")
        yield lambda: group.is_connected
        group.prepare(self._plan("host-b"))
        number = self._start(group, stays=True)
        yield lambda: number in self._running
        os.kill(group.child.pid, signal.SIGKILL)
        yield lambda: bool(self._lost)
        del self._running[number]
        self._loop.say(f"lost {self._lost}")

    def _wait_for_a_child(self) -> Iterator[Callable[[], bool]]:
        exits: list[int] = []
        pipes = spawn(["sh", "-c", "exit 5"], os.environ, inherits_stdin=False)
        self._loop.adopt(pipes.pid, exits.append)
        yield lambda: bool(exits)
        self._loop.say(f"a child exited with {exits}")
        stays = spawn(["sleep", "1000"], os.environ, inherits_stdin=False)
        self._loop.adopt(stays.pid, exits.append)

    def _connect(self, hostname: str) -> RemoteWorkerGroup:
        arguments = remote_python_command(hostname, SshOptions(), os.environ, "remote.agent")
        group = self._loop.remote_group(hostname, arguments, listener=self)
        group.connect(os.environ)
        return group

    def _plan(self, hostname: str) -> HostPlan:
        return HostPlan(hostname, ("sh", "-c", LINE), dict(os.environ), (self._store,), SECRET)

    def _start(self, group: WorkerGroup, *, stays: bool = False) -> int:
        number, self._number = self._number, self._number + 1
        slot = RankInfo(hostname="somewhere")
        group.start_worker(WorkerSpec(number, slot, {"NUMBER": str(number), "STAYS": "x" * stays}))
        return number

    # See ``JobHandler``.

    def started(self, worker: Worker) -> None:
        worker.rank_info = replace(worker.rank_info, rank=100 + worker.number)
        self._running[worker.number] = worker

    def ended(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            del self._running[worker.number]
            for group in self._loop.groups:
                group.forget(worker.number)

    def troubled(self, group: WorkerGroup, trouble: Trouble) -> None:
        self._loop.end(JobOutcome(1, f"{trouble}\n"))

    def connected(self, group: RemoteWorkerGroup) -> None:
        self._loop.say(f"{group.hostname} is there")

    def refused(self, group: RemoteWorkerGroup) -> None:
        self._loop.say(f"{group.hostname} refuses")

    def lost(self, group: RemoteWorkerGroup) -> None:
        self._lost.append(group.problem)


def agent_of(group: RemoteWorkerGroup) -> psutil.Process:
    """For a host that has no workers yet."""
    ssh = psutil.Process(group.child.pid)
    (agent,) = (p for p in (ssh, *ssh.children(recursive=True)) if "python" in p.name())
    return agent


def main() -> None:
    with (
        open_job_loop(JobPlan(), os.environ) as loop,
        closing(StoreServer(SECRET, addresses=[("127.0.0.1", 0)])) as server,
    ):
        store = server.addresses[0]
        server.start()
        job = ChangingJob(loop, store, int(sys.argv[1]))
        outcome = loop.run(job)
    sys.exit(outcome.status)


if __name__ == "__main__":
    main()
