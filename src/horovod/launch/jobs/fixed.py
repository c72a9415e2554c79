"""One run of a command on a fixed number of slots: start all, wait for all, end the rest.

The loop and the ending are those of every job (``job_loop.py``). The store serves the workers on a
second thread. The first worker that fails ends the job, and so does the loss of a host.

The other hosts start all at once (``RemoteHosts``); errors name all hosts that failed. Each host
gets one connection: the ssh that starts its agent shows whether the host can be reached, and the
agent waits for its plan on the same connection. No worker starts before every host has answered.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from textwrap import indent

from horovod.core.base.ranks import ranks_text
from horovod.launch.jobs.job_loop import JobLoop, open_job_loop
from horovod.launch.jobs.last_words import worker_failure
from horovod.launch.jobs.report import with_job_id
from horovod.launch.jobs.torch_variables import torch_master, torch_position
from horovod.launch.model.host_plan import (
    HostPlan,
    Rendezvous,
    WorkerSpec,
    host_plan,
    remote_environment,
)
from horovod.launch.model.hosts import counted
from horovod.launch.model.job_plan import JobOutcome, JobPlan, failure_text
from horovod.launch.model.ssh import advice
from horovod.launch.remote.remote_group import RemoteWorkerGroup
from horovod.launch.workers.addresses import store_addresses
from horovod.launch.workers.debugger import debugged
from horovod.launch.workers.processes import describe_exit, open_standard_files
from horovod.launch.workers.python_command import remote_python_command
from horovod.launch.workers.worker_group import Trouble, Worker, WorkerGroup
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.store.client import REPORT_KEYS
from horovod.rendezvous.store.server import StoreServer

_SHOWN_COMMAND = 60
_TCP_ADVICE = "TCP connections from here to its node have to get through: is there a firewall?"
# The most failures that are described in full: many hosts mostly fail alike.
_MOST_TOLD = 5


class RemoteHosts:
    """The remote groups of a job."""

    def __init__(self, groups: Sequence[RemoteWorkerGroup], start_timeout_s: float) -> None:
        self.groups = tuple(groups)
        self._start_timeout_s = start_timeout_s
        self._deadline = float("inf")

    def connect(self, environ: Mapping[str, str]) -> None:
        """Connect with all hosts; each is then connected, lost or late."""
        self._deadline = time.monotonic() + self._start_timeout_s
        for group in self.groups:
            group.connect(environ)

    @property
    def has_answered(self) -> bool:
        """Whether every host has, with an agent or a failure."""
        return all(group.is_connected or group.is_gone for group in self.groups)

    @property
    def deadline(self) -> float | None:
        """When all workers must have been started; None once they are."""
        return None if all(group.is_started for group in self.groups) else self._deadline

    def failures(self) -> str:
        """Why the job cannot start: the hosts that failed; empty if none did."""
        gone = [group for group in self.groups if group.is_gone]
        return _report(f"could not connect to some {self._hosts}; nothing has been started", gone)

    def delays(self) -> str:
        """Why the job has not started in time: the hosts that failed or are late."""
        late = [group for group in self.groups if not group.is_started]
        silent = [group for group in late if not group.is_connected]
        what = f"could not connect to some {self._hosts}" if silent else "some hosts do not start"
        limit = f"within {self._start_timeout_s:g} s (--start-timeout)"
        return _report(f"{what} {limit}", silent or late)

    @property
    def _hosts(self) -> str:
        return "hosts via ssh" if any(group.command for group in self.groups) else "embedded agents"

    def seen_addresses(self) -> dict[str, str]:
        """This machine's address as each host sees it, if it knows."""
        return {c.hostname: c.launcher_address for c in self.groups if c.launcher_address}


def ranks_of(group: RemoteWorkerGroup) -> str:
    """``rank 2`` or ``ranks 2 to 5``."""
    first, last = group.ranks[0], group.ranks[-1]
    return f"rank {first}" if first == last else f"ranks {first} to {last}"


def _report(title: str, groups: Sequence[RemoteWorkerGroup]) -> str:
    if not groups:
        return ""
    parts = [f"horovodrun: {title}:", *map(_describe, groups[:_MOST_TOLD])]
    if others := groups[_MOST_TOLD:]:
        parts.append(f"  and {', '.join(f'{c.hostname} ({_problem(c)})' for c in others)}")
    return "\n".join(parts) + "\n"


def _describe(group: RemoteWorkerGroup) -> str:
    command, lines = group.command, group.last_lines
    if not command:
        return f"  {group.hostname}: {_problem(group)}\n    try: {_TCP_ADVICE}"
    *reach, last = command
    shown = shlex.join([*reach, last[:_SHOWN_COMMAND] + "..."])
    hint = advice(command, group.child.exit_code, lines)
    parts = [f"  {group.hostname}: {_problem(group)}", f"    {shown}"]
    if lines:
        parts.append(indent(lines, "    | "))
    return "\n".join([*parts, f"    try: {hint}"])


def _problem(group: RemoteWorkerGroup) -> str:
    if group.problem:
        return group.problem
    if group.is_connected:
        return "has not started its workers"
    return "no answer" if group.child.exit_code is None else group.child.how_it_ended


def run_job(
    plan: JobPlan, environ: Mapping[str, str], rendezvous: Rendezvous | None = None
) -> JobOutcome:
    """Start the workers, wait for all of them, end the rest when one fails.

    Status: 0 if every worker exited with 0; 1 after a failure; 126 or 127 if the command cannot be
    run or found; 128 + signal after a signal. Workers' output goes to this process's standard
    output and error; rank 0, if it is on this machine, inherits standard input, the others read
    nothing. Main thread only: it takes over the signals while it runs. No process of a failed or
    interrupted job is left on return.

    ``rendezvous`` is that of a job of which ``plan`` is a part; a whole job gets a store here.

    Raises:
        OSError: the output directory cannot be made or written. Nothing was started then.
    """
    open_standard_files()
    if rendezvous is None:
        plan = with_job_id(plan, environ)
    with (
        open_job_loop(plan, environ, [slot.rank for slot in plan.slots]) as loop,
        closing(_FixedJob(plan, environ, rendezvous, loop)) as job,
    ):
        job.start()
        outcome = loop.run(job)
        loop.write_report(job.told(), outcome)
        return outcome


@dataclass(eq=False, repr=False)
class _FixedJob:
    """See ``JobHandler``."""

    _plan: JobPlan
    _environ: Mapping[str, str]
    _rendezvous: Rendezvous | None
    _loop: JobLoop

    def __post_init__(self) -> None:
        self._secret = self._rendezvous.secret if self._rendezvous else os.urandom(SECRET_BYTES)
        self._server: StoreServer | None = None
        self._torch_master: dict[str, str] = {}
        self._here = self._loop.local_group(self)
        others = self._plan.others
        remote = [name for name in self._plan.slots_by_host if name in others.addresses]
        groups = [self._open_group(name) for name in remote]
        self._remote_hosts = RemoteHosts(groups, others.start_timeout_s)
        self._groups: tuple[WorkerGroup, ...] = (self._here, *groups)

    def start(self) -> None:
        """Start all workers, or the connections to other hosts, whose workers follow."""
        say, groups = self._loop.say_verbose, self._remote_hosts.groups
        say(f"starting {counted(len(self._plan.slots))}: {shlex.join(self._plan.command)}")
        if not groups:
            self._begin()
            return
        names = " ".join(group.hostname for group in groups)
        if self._plan.others.agents:
            say(f"connecting with {names}")
        else:
            say("Filtering local host names.")
            say(f"Remote host found: {names}")
            say("Checking ssh on all remote hosts.")
        self._remote_hosts.connect(self._environ)

    def told(self) -> dict[str, bytes]:
        """The numbers that processes have sent for the report."""
        return {} if self._server is None else self._server.found(REPORT_KEYS)

    def close(self) -> None:
        """End the store."""
        if self._server is not None:
            self._server.close()

    # The start.

    def _open_group(self, hostname: str) -> RemoteWorkerGroup:
        others = self._plan.others
        way = others.agents.get(hostname) or remote_python_command(
            hostname, others.ssh, self._environ, "remote.agent"
        )
        return self._loop.remote_group(hostname, way, listener=self, call=self._plan.call)

    def _begin(self) -> None:
        """All hosts are there: start the workers."""
        plan, secret, stores = self._plan, self._secret, self._stores()
        self._torch_master = self._master(stores[0][0])
        environment = remote_environment(self._environ)
        for group in self._remote_hosts.groups:
            group.prepare(host_plan(plan, group.hostname, environment, stores, secret))
            self._start_workers(group, group.hostname)
        for hostname in plan.slots_by_host:
            if hostname not in plan.others.addresses:
                self._begin_here(host_plan(plan, hostname, self._environ, stores, secret))

    def _master(self, own_address: str) -> dict[str, str]:
        if self._rendezvous is not None:  # others start the rest of the job
            return {}
        hostname, others = self._plan.slots[0].hostname, self._plan.others.addresses
        if hostname in others:  # a name that only ssh knows has no address
            own_address = next(iter(others[hostname]), hostname)
        return torch_master(own_address, self._environ)

    def _stores(self) -> list[tuple[str, int]]:
        """The addresses of the job's store, which serves from here on."""
        if self._rendezvous is not None:
            return [(self._rendezvous.address, self._rendezvous.port)]
        others = self._plan.others
        seen = self._remote_hosts.seen_addresses()
        wanted = [(host, 0) for host in store_addresses(others.addresses, seen, others.interfaces)]
        self._server = StoreServer(self._secret, addresses=wanted, report=self._loop.say_later)
        stores = self._server.addresses
        self._server.start()
        self._loop.say_verbose("Launched horovod server.")
        return stores

    def _begin_here(self, plan: HostPlan) -> None:
        call, rank = self._plan.call, self._plan.debug_rank
        rendezvous = Rendezvous(*plan.stores[0], self._secret)
        stdin_of = None if call else rank or 0
        own = None if rank is None else {rank: debugged(plan.argv, self._plan.debug_port)}
        self._here.prepare(plan, rendezvous, files=call, stdin_of=stdin_of, own_argv=own)
        self._start_workers(self._here, plan.hostname)

    def _start_workers(self, group: WorkerGroup, hostname: str) -> None:
        common = {**self._loop.environment, **self._torch_master}
        for slot in self._plan.slots_by_host[hostname]:
            if not self._loop.is_ending:
                extra = {**common, **torch_position(slot), **self._plan.environment_of(slot.rank)}
                group.start_worker(WorkerSpec(slot.rank, slot, extra))

    # Events; see ``JobHandler``.

    @property
    def deadline(self) -> float | None:
        return self._remote_hosts.deadline

    def turn(self) -> None:
        if (at := self.deadline) is not None and time.monotonic() >= at:
            self._loop.end(JobOutcome(1, self._remote_hosts.delays()))

    def connected(self, group: RemoteWorkerGroup) -> None:
        self._loop.say_verbose(f"{group.hostname} has answered")
        self._go_on()

    def started(self, worker: Worker) -> None:
        self._loop.say_verbose(f"started {worker.name}")

    def ended(self, workers: Sequence[Worker]) -> None:
        if not self._loop.is_ending:
            self._judge(workers)

    def troubled(self, group: WorkerGroup, trouble: Trouble) -> None:
        self._loop.end(JobOutcome(trouble.status, f"horovodrun: {trouble.text}\n"))

    def refused(self, group: RemoteWorkerGroup) -> None:
        self._loop.say_verbose(f"{group.hostname}: {group.child.how_it_ended}; trying again")

    def lost(self, group: RemoteWorkerGroup) -> None:
        if self._loop.is_ending:
            return
        if self._server is None:
            self._go_on()
            return
        text = f"{group.hostname}: {group.problem}"
        self._loop.say(f"{text}; ending {counted(self._loop.living)}")
        self._loop.end(_host_loss(group))

    def _go_on(self) -> None:
        """Begin once all hosts have answered."""
        if self._loop.is_ending or not self._remote_hosts.has_answered:
            return
        if failures := self._remote_hosts.failures():
            self._loop.end(JobOutcome(1, failures))
            return
        if not self._plan.others.agents:
            self._loop.say_verbose("SSH was successful into all the remote hosts.")
        try:
            self._begin()
        except (OSError, ValueError) as error:
            text = f"horovodrun: cannot open the job's store: {error}\n"
            self._loop.end(JobOutcome(1, text))

    def _judge(self, ended: Sequence[Worker]) -> None:
        for worker in ended:
            self._loop.say_verbose(f"{worker.name} {describe_exit(worker.exit_code or 0)}")
        call = self._plan.call
        workers = [worker for group in self._groups for worker in group.workers.values()]
        failed = [w for w in ended if w.exit_code or (call and not call.has_result(w.number))]
        if failed:
            # Of several seen at one moment, a worker that a signal ended is the likelier cause.
            first = min(failed, key=lambda worker: (worker.exit_code or 0) > 0)
            living = self._loop.living
            others = f"; ending {counted(living)}" if living else ""
            self._loop.say(f"{first.name} {describe_exit(first.exit_code or 0)}{others}")
            # It may be the cause: others wait for a rank that has left early.
            if gone := [w.rank_info.rank for w in workers if w.exit_code == 0 and w not in failed]:
                self._loop.say(f"{ranks_text(sorted(gone))} had exited with code 0 by then")
            self._loop.end(worker_failure(first))
            return
        if sum(worker.exit_code == 0 for worker in workers) == len(self._plan.slots):
            self._loop.end(JobOutcome(0))


def _host_loss(group: RemoteWorkerGroup) -> JobOutcome:
    """The outcome when a host was lost with all its workers."""
    lines, exit_code = indent(group.last_lines, "  | "), group.child.exit_code
    cause = f"the connection to {group.hostname} ({ranks_of(group)}), which ended: {group.problem}"
    text = failure_text("\n".join(filter(None, (cause, lines))), group.ranks[0], exit_code)
    return JobOutcome(1, text, has_lost_host=True)
