"""One elastic run of a command: carries out what the policy decides, and tells it what happens.

There is one loop (``JobLoop``): the discovery script, output, signals, other hosts and the workers'
messages in the store all wake it. Whatever happens becomes an event. Events are handed to the
policy one by one, and its actions carried out, before the loop sleeps again.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from horovod.core.base.checked import BadMessageError, printable
from horovod.launch.elastic.answers import Answers
from horovod.launch.elastic.host_sources import (
    DiscoveryScript,
    EmbeddedAgentHosts,
    Finding,
    HostSource,
)
from horovod.launch.elastic.memory import DriverMessages, Memory, Record, new_record, open_store
from horovod.launch.elastic.policy.actions import (
    Abandon,
    Action,
    Assign,
    End,
    Finish,
    Publish,
    Say,
    Start,
)
from horovod.launch.elastic.worker_groups import WorkerGroups
from horovod.launch.embedded.agent_news import AgentUpdates
from horovod.launch.jobs.job_loop import JobLoop, open_job_loop
from horovod.launch.jobs.report import with_job_id
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.launch.remote.remote_group import RemoteWorkerGroup
from horovod.launch.workers.processes import describe_exit, open_standard_files
from horovod.launch.workers.worker_group import Trouble, Worker, WorkerGroup
from horovod.rendezvous.identity.elastic_messages import Ready, read_key
from horovod.rendezvous.store.client import REPORT_KEYS
from horovod.rendezvous.store.server import StoreServer

_LAST_WORDS_S = 2.0  # from an error that ends the job to the end of the worker that met it


def run_elastic_job(
    plan: JobPlan, environ: Mapping[str, str], updates: AgentUpdates | None = None
) -> JobOutcome:
    """Run ``plan`` until its workers have finished, or cannot go on.

    ``updates`` tell the embedded agents of a plan that has them. Status and signals as for
    ``run_job``; nothing reads standard input. Main thread only. The answer files of ``plan.call``
    get the results of as many ranks, or the first of them the failure that ended the job.

    Raises:
        OSError: the output directory cannot be made or written. Nothing was started then.
    """
    open_standard_files()
    plan = with_job_id(plan, environ)
    with closing(Memory(plan, environ)) as memory:
        outcome = _run(plan, environ, memory, memory.recalled or new_record(plan), updates)
        if outcome is None:  # nothing is left of the job that was to be taken over
            outcome = _run(plan, environ, memory, new_record(plan), updates)
        assert outcome is not None
        memory.remove()
        return outcome


def _run(
    plan: JobPlan,
    environ: Mapping[str, str],
    memory: Memory,
    record: Record,
    updates: AgentUpdates | None,
) -> JobOutcome | None:
    """The job's outcome; None if it was to be taken over and is not there any more."""
    assert plan.elastic is not None
    numbers = range(plan.elastic.limits.np)
    is_return = record is memory.recalled

    def on_set(key: str, value: bytes) -> None:
        if (message := read_key(key)) is not None:
            loop.wakeups.call(lambda: driver.hear(*message, value))

    with (
        open_job_loop(plan, environ, numbers, is_continued=is_return) as loop,
        open_store(record, report=loop.say_later, on_set=on_set) as server,
        closing(_ElasticDriver(plan, environ, loop, server, memory, record, updates)) as driver,
    ):
        driver.start()
        outcome = loop.run(driver)
        if driver.is_void:
            return None
        loop.write_report(server.found(REPORT_KEYS), outcome)
        driver.deliver(outcome)
        return outcome


@dataclass(eq=False, repr=False)
class _ElasticDriver:
    """See ``JobHandler``."""

    _plan: JobPlan
    _environ: Mapping[str, str]
    _loop: JobLoop
    _server: StoreServer
    _memory: Memory
    _record: Record
    _updates: AgentUpdates | None

    def __post_init__(self) -> None:
        plan, loop, updates = self._plan, self._loop, self._updates
        assert plan.elastic is not None
        self._elastic = plan.elastic
        self._policy = self._record.policy
        self._messages = DriverMessages(self._server, self._record)
        self._answers = Answers(plan.call, plan.least_results) if plan.call else None
        agents = EmbeddedAgentHosts(updates, loop.wakeups, self._found) if updates else None
        self._source = agents or self._host_source()
        self._groups = WorkerGroups(
            plan,
            self._environ,
            loop,
            self._server,
            self._record,
            listener=self,
            failed=self._host_failed,
            files=self._answers,
            agents=agents.addresses if agents else None,
        )
        self._is_taking_over = self._record is self._memory.recalled
        self.is_void = False  # there is nothing to take over
        self._events: deque[Callable[[], list[Action]]] = deque()
        self._note = self._events.append
        self._fatal: dict[int, tuple[float, Callable[[], list[Action]]]] = {}  # and when it counts
        self._said_once: set[str] = set()
        self._handlers: dict[type, Callable[..., None]] = {
            Start: self._start,
            End: self._end,
            Abandon: self._messages.abandon,
            Assign: self._assign,
            Publish: lambda action: self._messages.publish(action.update),
            Say: lambda action: self._loop.say(action.text),
            Finish: self._finish,
        }

    def start(self) -> None:
        """Look for hosts, or for the workers that another driver has left."""
        if self._is_taking_over:
            self._take_over()
        else:
            if self._memory.void:
                self._loop.say(f"job {self._elastic.job_id} begins anew: {self._memory.void}")
            command = shlex.join(self._plan.command)
            self._loop.say_verbose(f"starting {self._elastic.limits.np} or more workers: {command}")
        self.turn()

    def _take_over(self) -> None:
        """Repeat the pending decisions; no event reaches the policy before a worker is found."""
        pending, self._record.pending = self._record.pending, []
        begun = {action.worker for action in pending if isinstance(action, Start)}
        workers = {n: name for n, name in self._policy.workers.items() if n not in begun}
        for number in workers:
            self._add_log(number)
        self._messages.restore()
        self._groups.take_over(workers)
        for action in pending:
            self._handlers[type(action)](action)

    def deliver(self, outcome: JobOutcome) -> None:
        """Give the caller of a function its results, or the failure."""
        if self._answers is not None:
            self._answers.deliver(outcome)

    def close(self) -> None:
        self._source.close()
        if self._answers is not None:
            self._answers.close()

    def _host_source(self) -> HostSource:
        plan, loop = self._elastic, self._loop
        if not plan.script:
            hosts = dict(self._plan.hosts)
            loop.wakeups.call(lambda: self._found(Finding(hosts)))
            return HostSource(self._found)
        return DiscoveryScript(
            plan.script, plan.slots_per_host, loop.selector, self._found, self._environ, loop.adopt
        )

    # Events; see ``JobHandler``.

    @property
    def deadline(self) -> float | None:
        times = [self._source.deadline, self._groups.deadline]
        if not self._is_taking_over:
            times += [time.monotonic() if self._events else self._policy.deadline]
            times += [due for due, _ in self._fatal.values()]
        return min((at for at in times if at is not None), default=None)

    def turn(self) -> None:
        now = time.monotonic()
        self._source.tick(now)
        self._groups.tick(now)
        if self._is_taking_over and not self._has_taken_over():
            return
        for worker, (due, event) in list(self._fatal.items()):
            if now >= due:
                del self._fatal[worker]
                self._note(event)
        if (at := self._policy.deadline) is not None and now >= at:
            self._note(partial(self._policy.tick, now))
        self._carry_out()

    def _has_taken_over(self) -> bool:
        if self._groups.has_found:
            self._is_taking_over = False
            self._loop.say(f"job {self._elastic.job_id} is taken over")
        elif self._groups.deadline is None:
            self._loop.say(f"job {self._elastic.job_id} begins anew: none of its workers is left")
            self.is_void = True
            self._loop.end(JobOutcome(0))
        return not self._is_taking_over

    def _found(self, finding: Finding) -> None:
        self._loop.say(finding.log)
        is_known = bool(self._record.hostnames) and not finding.is_final
        if finding.error and is_known:  # another driver has had an answer
            self._say_once(f"{finding.error}; the last good answer is kept")
        elif finding.error:
            self._loop.end(JobOutcome(1, f"horovodrun: {finding.error}\n"))
        elif (hosts := finding.hosts) is not None:
            self._record.hostnames = set(hosts)
            self._note(partial(self._policy.hosts_found, time.monotonic(), hosts))

    def ended(self, workers: Sequence[Worker]) -> None:
        self._loop.wakeups.take_calls()  # their messages come first
        for worker in workers:
            self._exited(worker.number, worker.exit_code or 0)
            self._loop.say_verbose(f"{worker.name} {describe_exit(worker.exit_code or 0)}")

    def started(self, worker: Worker) -> None:
        self._policy.note_pid(worker.number, worker.pid)
        self._loop.say_verbose(f"started {worker.name}")

    def troubled(self, group: WorkerGroup, trouble: Trouble) -> None:
        if not self._messages.has_heard:  # no worker has reached init: nothing is known to work
            self._loop.end(JobOutcome(trouble.status, f"horovodrun: {trouble.text}\n"))
            return
        self._loop.say(trouble.text)
        self._groups.troubled(group, trouble)
        if trouble.number is not None:
            self._exited(trouble.number, trouble.status)

    def connected(self, group: RemoteWorkerGroup) -> None:
        self._loop.say_verbose(f"{group.hostname} has answered")
        if group.dropped_lines:
            dropped = f"{group.dropped_lines} lines of output were dropped"
            self._loop.say(f"{group.hostname}: {dropped} while no launcher was connected")
        for number in self._groups.connected(group):
            self._exited(number, -signal.SIGKILL)
        for worker in group.workers.values():
            self._loop.say_verbose(f"found {worker.name}")
            _, assignment = self._record.answers.get(worker.number, (0, None))
            if assignment is not None and not assignment.removal:
                self._groups.set_rank(worker.number, assignment)
                self._loop.world_size = assignment.rank_info.size

    def refused(self, group: RemoteWorkerGroup) -> None:
        self._loop.say_verbose(f"{group.hostname}: {group.child.how_it_ended}; trying again")

    def lost(self, group: RemoteWorkerGroup) -> None:
        for number in self._groups.lost(group):
            self._give_up(number)

    def _host_failed(self, hostname: str, reason: str) -> None:
        for number, name in self._policy.workers.items():
            if name == hostname:
                self._give_up(number)
        self._note(partial(self._policy.host_lost, time.monotonic(), hostname, reason))

    def _give_up(self, number: int) -> None:
        """No more events of this worker will come."""
        self._messages.forget(number)
        self._take_answer(number, -signal.SIGKILL)

    def _exited(self, number: int, exit_code: int) -> None:
        self._groups.forget(number)
        self._messages.forget(number)
        if number in self._fatal:
            self._note(self._fatal.pop(number)[1])
        is_complete = self._take_answer(number, exit_code)
        exited = self._policy.worker_exited
        self._note(partial(exited, time.monotonic(), number, exit_code, is_complete=is_complete))

    def _take_answer(self, number: int, exit_code: int) -> bool:
        """Whether a worker that has ended has left its result."""
        return self._answers is None or self._answers.note_end(number, exit_code)

    def hear(self, worker: int, kind: str, count: int, value: bytes) -> None:
        """A worker has said something; the kinds are those of ``WorkerKeys``."""
        if kind == "ready":
            self._read_ready(worker, count, value)
        elif kind == "done":
            self._note(partial(self._policy.worker_done, time.monotonic(), worker))
        elif kind == "fatal":
            self._note_fatal(worker, printable(value.decode(errors="replace")))

    def _read_ready(self, worker: int, count: int, value: bytes) -> None:
        try:
            ready = Ready.from_bytes(value)
        except BadMessageError as error:
            self._note_fatal(worker, str(error.of(f"worker {worker}")))
            return
        # It may have ended since.
        if self._groups.has(worker) and self._messages.note_question(worker, count):
            self._note(partial(self._policy.worker_ready, time.monotonic(), worker, ready))

    def _note_fatal(self, worker: int, text: str) -> None:
        now = time.monotonic()
        event = partial(self._policy.worker_fatal, now, worker, text)
        # A caller that waits for an answer gets the worker's own error.
        self._fatal[worker] = (now + (_LAST_WORDS_S if self._answers else 0.0), event)

    # Actions.

    def _carry_out(self) -> None:
        while self._events and not self._loop.is_ending:
            self._record.pending = []
            while self._events:
                self._record.pending += self._events.popleft()()
            self._remember()
            for action in self._record.pending:
                self._handlers[type(action)](action)
        self._groups.keep(self._record.hostnames)

    def _remember(self) -> None:
        """Write the record before the actions, so that another driver knows all that was done."""
        self._record.stores = self._server.addresses
        try:
            self._memory.keep(self._record)
        except OSError as error:
            self._say_once(f"this job cannot be taken over from here on: {error}")

    def _say_once(self, text: str) -> None:
        if text not in self._said_once:
            self._said_once.add(text)
            self._loop.say(text)

    def _start(self, action: Start) -> None:
        self._add_log(action.worker)
        if self._answers is not None:
            self._answers.note_position(0, action.worker, action.rank_info)
        self._groups.start(action.worker, action.rank_info)

    def _add_log(self, number: int) -> None:
        try:
            self._loop.logs.add(number)
        except OSError as error:
            self._loop.say(f"the output of worker {number} is not kept: {error}")

    def _end(self, action: End) -> None:
        if not self._groups.end(action.worker, is_urgent=action.is_urgent):
            self._exited(action.worker, -signal.SIGTERM)

    def _assign(self, action: Assign) -> None:
        self._messages.begin_world(action.world)
        for number, assignment in action.assignments.items():
            if not self._groups.has(number):
                continue  # its end is among the events to come
            slot = None if assignment.removal else self._groups.set_rank(number, assignment)
            if slot is not None and not assignment.is_provisional:
                self._loop.world_size = slot.size
                if self._answers is not None:
                    self._answers.note_position(action.world, number, slot)
            self._messages.answer(number, assignment)

    def _finish(self, action: Finish) -> None:
        outcome = action.outcome
        if self._answers is not None and outcome.status == 0:
            outcome = self._answers.judged(outcome)
        self._loop.end(outcome)
