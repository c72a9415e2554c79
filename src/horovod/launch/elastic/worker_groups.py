"""The workers of an elastic job on all its hosts: a worker group for each, made when it is needed.

Workers on this machine start at once. Another host is connected by ssh first, and its workers wait
for that. In a job with an id every host, this machine included, has a detached agent, which is
connected through a proxy and may have workers already. A group goes with its host. The driver
decides what the ends of workers and connections mean.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from horovod.core.base.rank_info import RankInfo
from horovod.launch.calls.call import WorkerFiles
from horovod.launch.elastic.memory import Record
from horovod.launch.jobs.job_loop import JobLoop
from horovod.launch.model.host_plan import (
    HostPlan,
    Rendezvous,
    WorkerSpec,
    host_plan,
    remote_environment,
)
from horovod.launch.model.job_plan import EmbeddedAgentAddress, JobPlan
from horovod.launch.remote.remote_group import Listener, RemoteWorkerGroup
from horovod.launch.workers.addresses import is_own_address, resolve, store_addresses
from horovod.launch.workers.machine import is_this_machine
from horovod.launch.workers.python_command import python_command, remote_python_command
from horovod.launch.workers.worker_group import Trouble, WorkerGroup
from horovod.rendezvous.identity.elastic_messages import RankAssignment
from horovod.rendezvous.store.server import StoreServer


@dataclass
class _Connection:
    """Another host, or any with a detached agent.

    Once it has answered, the workers in ``waiting`` start there and those in ``ending`` are ended.
    ``is_again``: it has or had workers of this job.
    """

    group: RemoteWorkerGroup
    answer_by: float
    is_again: bool = False
    waiting: dict[int, WorkerSpec] = field(default_factory=dict)
    ending: set[int] = field(default_factory=set)


@dataclass(eq=False, repr=False)
class WorkerGroups:
    """``listener`` gets all events; ``failed`` gets a host's name and why it cannot be used.

    ``files`` are those of the call of ``horovod.run``, if it is one. With ``agents``, which are
    found while the job runs, all hosts have embedded agents.
    """

    _plan: JobPlan
    _environ: Mapping[str, str]
    _loop: JobLoop
    _server: StoreServer
    _record: Record
    _: KW_ONLY
    listener: Listener
    failed: Callable[[str, str], None]
    files: WorkerFiles | None
    agents: Mapping[str, EmbeddedAgentAddress] | None = None

    def __post_init__(self) -> None:
        assert self._plan.elastic is not None
        self._elastic = self._plan.elastic
        # How long workers wait for another driver.
        timeout_s = self._elastic.limits.elastic_timeout_s
        self._reconnect_timeout_s = timeout_s if self._elastic.job_id else 0.0
        self.has_found = False  # a worker of an earlier driver
        self._here = None if self._plan.elastic.job_id else self._open_local_group()
        self._is_here: dict[str, bool] = {}
        self._connections: dict[str, _Connection] = {}
        self._groups: dict[int, WorkerGroup] = {}

    @property
    def deadline(self) -> float | None:
        """When ``tick`` must be called if nothing happens before; None: all hosts have answered."""
        late = [c.answer_by for c in self._connections.values() if not c.group.is_connected]
        return min(late, default=None)

    def tick(self, now: float) -> None:
        """Give up hosts that do not answer."""
        limit = f"no answer within {self._plan.others.start_timeout_s:g} s (--start-timeout)"
        for hostname, connection in list(self._connections.items()):
            if not connection.group.is_connected and now >= connection.answer_by:
                self._drop(hostname, _with_lines(limit, connection.group))

    def take_over(self, workers: Mapping[int, str]) -> None:
        """Connect with the hosts of ``workers``, which another driver has started.

        ``connected`` says which of them are gone; ``has_found`` tells whether there is any.
        """
        for hostname in dict.fromkeys(workers.values()):
            self._connect(hostname, [n for n, name in workers.items() if name == hostname])

    def start(self, number: int, rank_info: RankInfo) -> None:
        """Start a worker, at once or when its host has answered."""
        extra = {**self._loop.environment, **self._plan.extra_environment}
        extra |= {"HOROVOD_ELASTIC": "1", "_HOROVOD_WORKER": str(number)}
        if self._elastic.job_id:
            extra["_HOROVOD_RECONNECT_TIMEOUT"] = f"{self._reconnect_timeout_s:g}"
        spec = WorkerSpec(number, rank_info, extra)
        if self._here is not None and self._on_this_machine(rank_info.hostname):
            self._groups[number] = self._here
            self._here.start_worker(spec)
            return
        connection = self._connections.get(rank_info.hostname) or self._connect(rank_info.hostname)
        if connection.group.is_connected:
            self._groups[number] = connection.group
            connection.group.start_worker(spec)
        else:
            connection.waiting[number] = spec

    def end(self, number: int, *, is_urgent: bool) -> bool:
        """End a worker; false if there is no process: it waits for its host, or has ended."""
        group = self._groups.get(number)
        if group is None:
            for connection in self._connections.values():
                connection.waiting.pop(number, None)
            return False
        if isinstance(group, RemoteWorkerGroup) and not group.is_connected:
            self._connections[group.hostname].ending.add(number)
        elif is_urgent:
            group.kill_worker(number)
        else:
            group.end_worker(number)
        return True

    def has(self, number: int) -> bool:
        """Whether a worker was started, or will be, and was not forgotten."""
        connections = self._connections.values()
        return number in self._groups or any(number in c.waiting for c in connections)

    def forget(self, number: int) -> None:
        """A worker has ended."""
        if (group := self._groups.pop(number, None)) is not None:
            group.forget(number)

    def set_rank(self, number: int, assignment: RankAssignment) -> RankInfo | None:
        """Set the rank that prefixes a worker's lines. Returns its position, if it lives."""
        group = self._groups.get(number)
        worker = None if group is None else group.workers.get(number)
        if worker is None:
            return None
        worker.rank_info = assignment.rank_info
        return worker.rank_info

    def keep(self, hostnames: Collection[str]) -> None:
        """Disconnect other hosts than these, where no worker runs."""
        for hostname, connection in list(self._connections.items()):
            is_idle = connection.group.living == 0 and not connection.waiting
            is_idle = is_idle and (connection.group.is_connected or not connection.is_again)
            if hostname not in hostnames and is_idle:
                self._connections.pop(hostname).group.dismiss()

    # Events of hosts.

    def connected(self, group: RemoteWorkerGroup) -> list[int]:
        """A host has answered: start what waits for it.

        Returns:
            The workers that it was expected to have and does not have.
        """
        connection = self._connections.get(group.hostname)
        if connection is None or connection.group is not group:
            group.dismiss()
            return []
        try:
            stores = self._stores_for(group)
        except (OSError, ValueError) as error:
            self._drop(group.hostname, f"cannot open the job's store for it: {error}")
            return []
        environment = self._environ
        if not self._on_this_machine(group.hostname):
            environment = remote_environment(environment)
        group.prepare(self._plan_for(group.hostname, environment, stores))
        return self._compare(connection)

    def _compare(self, connection: _Connection) -> list[int]:
        """Compare the workers that should be on the host with those that are."""
        group, found = connection.group, set(connection.group.workers)
        known = {number for number, other in self._groups.items() if other is group}
        waiting, connection.waiting = connection.waiting, {}
        self.has_found = self.has_found or bool(found & (known | waiting.keys()))
        for number, spec in waiting.items():
            self._groups[number] = group
            if number not in found:
                group.start_worker(spec)
        ending, connection.ending = connection.ending, set()
        for number in ending & found:
            group.end_worker(number)
        for number in found - known - waiting.keys():
            group.kill_worker(number)
            group.forget(number)
        return sorted(known - found)

    def lost(self, group: RemoteWorkerGroup) -> list[int]:
        """A connection has ended. A detached agent keeps its workers: connect with it again.

        Returns:
            The workers about which no more events will come.
        """
        numbers = [number for number, found in self._groups.items() if found is group]
        connection = self._connections.get(group.hostname)
        is_current = connection is not None and connection.group is group
        may_return = self._elastic.job_id and group.is_connected and not self._loop.is_ending
        if is_current and may_return and numbers:
            self._loop.say(f"{group.hostname}: connecting again, since {group.problem}")
            self._connect(group.hostname, numbers)
            return []
        for number in numbers:
            del self._groups[number]
        if is_current:
            del self._connections[group.hostname]
            self.failed(group.hostname, _with_lines(group.problem, group))
        return numbers

    def _drop(self, hostname: str, problem: str) -> None:
        """Drop a host with its workers."""
        group = self._connections.pop(hostname).group
        self._groups = {number: each for number, each in self._groups.items() if each is not group}
        group.dismiss()
        self.failed(hostname, problem)

    def troubled(self, group: WorkerGroup, trouble: Trouble) -> None:
        """A worker cannot be started; without a number the whole host cannot be used."""
        if trouble.number is not None:
            self._groups.pop(trouble.number, None)
        elif isinstance(group, RemoteWorkerGroup) and group.hostname in self._connections:
            self._drop(group.hostname, trouble.text)

    def _on_this_machine(self, hostname: str) -> bool:
        if hostname not in self._is_here:
            self._is_here[hostname] = self.agents is None and is_this_machine(hostname)
        return self._is_here[hostname]

    def _open_local_group(self) -> WorkerGroup:
        group = self._loop.local_group(self.listener)
        group.prepare(
            self._plan_for("localhost", self._environ, self._server.addresses),
            Rendezvous(*self._server.address, self._record.secret),
            files=self.files,
        )
        return group

    def _connect(self, hostname: str, numbers: Sequence[int] = ()) -> _Connection:
        """Connect with a host, whose detached agent should have these workers."""
        way = self._command_for(hostname) if self.agents is None else self.agents[hostname]
        group = self._loop.remote_group(hostname, way, listener=self.listener, call=self.files)
        if numbers:
            self._groups.update(dict.fromkeys(numbers, group))
        answer_by = time.monotonic() + self._plan.others.start_timeout_s
        connection = self._connections[hostname] = _Connection(group, answer_by, bool(numbers))
        group.connect(self._environ, has_workers=bool(numbers))
        return connection

    def _command_for(self, hostname: str) -> list[str]:
        ssh, module, arguments = self._plan.others.ssh, "remote.agent", tuple[str, ...]()
        if self._elastic.job_id:
            module, arguments = "remote.proxy", (self._elastic.job_id, hostname, self._record.run)
            if self._on_this_machine(hostname):
                return python_command(sys.executable, module, arguments)
        return remote_python_command(hostname, ssh, self._environ, module, arguments)

    def _plan_for(
        self, hostname: str, environment: Mapping[str, str], stores: Sequence[tuple[str, int]]
    ) -> HostPlan:
        secret, timeout_s = self._record.secret, self._reconnect_timeout_s
        return host_plan(self._plan, hostname, environment, stores, secret, timeout_s)

    def _stores_for(self, group: RemoteWorkerGroup) -> Sequence[tuple[str, int]]:
        """The addresses at which the host finds the job's store; missing ones are opened now."""
        if self._on_this_machine(group.hostname):
            return self._server.addresses[:1]
        if self.agents is None:
            known = {group.hostname: resolve(group.hostname)}
        else:
            known = {group.hostname: (self.agents[group.hostname].host,)}
        seen = {group.hostname: group.launcher_address} if group.launcher_address else {}
        wanted = store_addresses(known, seen, self._plan.others.interfaces)
        there = dict(self._server.addresses)
        missing = [host for host in wanted if host not in there and is_own_address(host)]
        there.update(self._server.listen([(host, 0) for host in missing]))
        return [(host, there[host]) for host in wanted if host in there]


def _with_lines(problem: str, group: RemoteWorkerGroup) -> str:
    """``problem``, and what ssh or the host's login scripts have printed."""
    lines = group.last_lines
    return f"{problem}: {lines.splitlines()[-1]}" if lines else problem
