"""One elastic run of a command: carries out what the director decides, and tells it what happens.

The stage's loop is the only one: the discovery script, output, signals, other hosts and what
workers say through the store all wake it. Whatever happens becomes an event; events are handed to
the director one by one, and its actions done, before the loop sleeps again.
"""

from __future__ import annotations

import os
import random
import selectors
import shlex
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial

from horovod.launch.crew import Crew, Trouble, Worker
from horovod.launch.elastic.actions import (
    Abandon,
    Action,
    End,
    Finish,
    Publish,
    Say,
    Seats,
    Start,
)
from horovod.launch.elastic.answers import Answers
from horovod.launch.elastic.crews import Crews
from horovod.launch.elastic.director import Director
from horovod.launch.elastic.discovery import Finding
from horovod.launch.elastic.mailbox import Mailbox
from horovod.launch.elastic.plan import ElasticPlan
from horovod.launch.elastic.script import DiscoveryScript, FixedHosts, HostSource
from horovod.launch.job_plan import JobOutcome
from horovod.launch.logs import Logs
from horovod.launch.processes import describe_exit, open_standard_files
from horovod.launch.remote_crew import RemoteCrew
from horovod.launch.stage import Manner, Stage, open_stage
from horovod.rendezvous.authentication import SECRET_BYTES
from horovod.rendezvous.elastic_messages import (
    Ready,
    Seat,
    WorkerKeys,
    update_key,
    world_scope,
)
from horovod.rendezvous.store_server import StoreServer

__all__ = ["run_elastic_job"]

_LAST_WORDS_S = 2.0  # from an error that ends the job to the end of the worker that met it


def run_elastic_job(plan: ElasticPlan, environ: Mapping[str, str]) -> JobOutcome:
    """Run ``plan`` until its workers have finished, or cannot go on; say how it went.

    Status and signals as for ``run_job``; nobody reads standard input. Main thread only. The answer
    files of ``plan.call`` get the results of as many ranks, or the first of them what the worker
    told whose failure ended the job.

    Raises:
        OSError: the output directory cannot be made or written. Nothing was started then.
    """
    open_standard_files()
    manner = Manner(plan.is_verbose, plan.is_timestamped, tells_outcome=plan.call is None)
    secret = os.urandom(SECRET_BYTES)
    with (
        closing(Logs(plan.output_directory, range(plan.limits.np))) as logs,
        open_stage(logs, manner) as stage,
        closing(Mailbox()) as mailbox,
        StoreServer(secret, report=stage.wakeups.note, on_set=mailbox.put) as server,
    ):
        job = _ElasticJob(plan, environ, stage, logs, mailbox, server, secret)
        with closing(job):
            job.start()
            return job.delivered(stage.run(job))


class _ElasticJob:
    """See ``Play``."""

    def __init__(
        self,
        plan: ElasticPlan,
        environ: Mapping[str, str],
        stage: Stage,
        logs: Logs,
        mailbox: Mailbox,
        server: StoreServer,
        secret: bytes,
    ) -> None:
        self._plan = plan
        self._stage = stage
        self._logs = logs
        self._mailbox = mailbox
        self._server = server
        self._director = Director(plan.limits, random.Random(), time.time)
        self._answers = Answers(plan.call) if plan.call else None
        self._crews = Crews(
            plan,
            environ,
            stage,
            server,
            secret,
            listener=self,
            failed=self._host_failed,
            files=self._answers,
        )
        self._events: deque[Callable[[], list[Action]]] = deque()
        self._hostnames: set[str] = set()
        self._asked: dict[int, int] = {}  # for how many seats each worker has asked
        self._fatal: dict[int, tuple[float, Callable[[], list[Action]]]] = {}  # and when it counts
        self._updates = 0
        self._worlds: list[int] = []  # whose meeting may have left something in the store
        self._actions: dict[type, Callable[..., None]] = {
            Start: self._start,
            End: self._end,
            Abandon: self._abandon,
            Seats: self._give_seats,
            Publish: self._publish,
            Say: lambda action: stage.say(action.text),
            Finish: self._finish,
        }
        self._source = self._host_source(environ)
        self._source_pid: int | None = None

    def start(self) -> None:
        """Look for hosts; all else follows."""
        self._stage.selector.register(self._mailbox, selectors.EVENT_READ, self._read_mailbox)
        command = shlex.join(self._plan.command)
        self._stage.say_verbose(f"starting {self._plan.limits.np} or more workers: {command}")
        self.turn()

    def delivered(self, outcome: JobOutcome) -> JobOutcome:
        """``outcome``, after the caller of a function has got what belongs to it."""
        if self._answers is not None:
            self._answers.deliver(outcome)
        return outcome

    def close(self) -> None:
        """Look for no more hosts; nobody asks for answers any more."""
        self._source.close()
        if self._answers is not None:
            self._answers.close()

    def _host_source(self, environ: Mapping[str, str]) -> HostSource:
        plan = self._plan
        if not plan.script:
            hosts = {host.hostname: host.slots for host in plan.hosts}
            return FixedHosts(hosts, self._found)
        selector = self._stage.selector
        return DiscoveryScript(plan.script, plan.slots_per_host, selector, self._found, environ)

    # What happens; see stage.Play.

    @property
    def deadline(self) -> float | None:
        if self._events:
            return time.monotonic()
        found = (self._director.deadline, self._source.deadline, self._crews.deadline)
        times = [at for at in found if at is not None] + [due for due, _ in self._fatal.values()]
        return min(times, default=None)

    def turn(self) -> None:
        now = time.monotonic()
        self._look_for_hosts(now)
        self._crews.tick(now)
        self._look_at_fatal(now)
        if (at := self._director.deadline) is not None and now >= at:
            self._note(partial(self._director.tick, now))
        self._carry_out_all()

    def _look_for_hosts(self, now: float) -> None:
        source = self._source
        source.tick(now)
        if (pid := source.pid) is not None and pid != self._source_pid:
            self._source_pid = pid
            self._stage.adopt(pid, partial(self._source_ended, pid))

    def _source_ended(self, pid: int, status: int) -> None:
        self._source_pid = None
        self._source.note_exit(pid, status)

    def _found(self, finding: Finding) -> None:
        if finding.log:
            self._stage.say(finding.log)
        if finding.error:
            self._stage.end(JobOutcome(1, f"horovodrun: {finding.error}\n"))
        elif (hosts := finding.hosts) is not None:
            self._hostnames = set(hosts)
            self._note(partial(self._director.hosts_found, time.monotonic(), hosts))

    def ended(self, workers: Sequence[Worker]) -> None:
        self._read_mailbox()  # what they had said comes first
        for worker in workers:
            self._exited(worker.number, worker.exit_code or 0)
            self._stage.say_verbose(f"{worker.name} {describe_exit(worker.exit_code or 0)}")

    def started(self, worker: Worker) -> None:
        self._stage.say_verbose(f"started {worker.name}")

    def troubled(self, crew: Crew, trouble: Trouble) -> None:
        if not self._asked:  # nobody has got as far as init: nothing is known to work
            self._stage.end(JobOutcome(trouble.status, f"horovodrun: {trouble.text}\n"))
            return
        self._stage.say(trouble.text)
        self._crews.troubled(crew, trouble)
        if trouble.number is not None:
            self._exited(trouble.number, trouble.status)

    def greeted(self, crew: RemoteCrew) -> None:
        self._stage.say_verbose(f"{crew.hostname} has answered")
        self._crews.greeted(crew)

    def refused(self, crew: RemoteCrew) -> None:
        self._stage.say_verbose(f"{crew.hostname}: {crew.child.how_it_ended}; trying again")

    def lost(self, crew: RemoteCrew) -> None:
        for number in self._crews.lost(crew):
            self._asked.pop(number, None)
            self._take_answer(number, -signal.SIGKILL)

    def _host_failed(self, hostname: str, reason: str) -> None:
        self._note(partial(self._director.host_lost, time.monotonic(), hostname, reason))

    def _exited(self, number: int, exit_code: int) -> None:
        self._asked.pop(number, None)
        self._crews.forget(number)
        self._server.drop(WorkerKeys(number).all)
        if number in self._fatal:
            self._note(self._fatal.pop(number)[1])
        is_complete = self._take_answer(number, exit_code)
        now = time.monotonic()
        exited = self._director.worker_exited
        self._note(partial(exited, now, number, exit_code, is_complete=is_complete))

    def _take_answer(self, number: int, exit_code: int) -> bool:
        """Whether a worker that has ended has left what it was started for."""
        return self._answers is None or self._answers.note_end(number, exit_code)

    def _read_mailbox(self) -> None:
        for worker, word, count, value in self._mailbox.take():
            if word == "ready":
                self._note_ready(worker, count, Ready.decoded(value))
            elif word == "done":
                self._note(partial(self._director.worker_done, time.monotonic(), worker))
            elif word == "fatal":
                self._note_fatal(worker, value.decode(errors="replace"))

    def _note_ready(self, worker: int, count: int, ready: Ready) -> None:
        if not self._crews.has(worker):
            return  # it has ended since
        self._asked[worker] = count
        self._note(partial(self._director.worker_ready, time.monotonic(), worker, ready))

    def _note_fatal(self, worker: int, text: str) -> None:
        now = time.monotonic()
        event = partial(self._director.worker_fatal, now, worker, text)
        # Whoever waits for an answer is told all of it.
        self._fatal[worker] = (now + (_LAST_WORDS_S if self._answers else 0.0), event)

    def _look_at_fatal(self, now: float) -> None:
        for worker, (due, event) in list(self._fatal.items()):
            if now >= due:
                del self._fatal[worker]
                self._note(event)

    def _note(self, event: Callable[[], list[Action]]) -> None:
        self._events.append(event)

    # What is done.

    def _carry_out_all(self) -> None:
        while self._events and not self._stage.is_ending:
            for action in self._events.popleft()():
                self._actions[type(action)](action)
        self._crews.keep(self._hostnames)

    def _start(self, action: Start) -> None:
        try:
            self._logs.add(action.worker)
        except OSError as error:
            self._stage.say(f"the output of worker {action.worker} is not kept: {error}")
        if self._answers is not None:
            self._answers.note_place(0, action.worker, action.slot)
        self._crews.start(action.worker, action.slot)

    def _end(self, action: End) -> None:
        if not self._crews.end(action.worker, is_urgent=action.is_urgent):
            self._exited(action.worker, -signal.SIGTERM)

    def _abandon(self, action: Abandon) -> None:
        for scope in _scopes(action.world):
            self._server.abandon(scope, action.reason)

    def _give_seats(self, action: Seats) -> None:
        while self._worlds and self._worlds[0] < action.world:
            self._abandon(Abandon(self._worlds.pop(0), "this world has been replaced"))
        if action.world not in self._worlds:
            self._worlds.append(action.world)
        for number, seat in action.seats.items():
            if not self._crews.has(number):
                continue  # its end is among the events to come
            if not seat.removal:
                self._name_seat(action.world, number, seat)
            self._server.set(WorkerKeys(number).seat(self._asked[number]), seat.encoded())

    def _name_seat(self, world: int, number: int, seat: Seat) -> None:
        slot = self._crews.name_seat(number, seat)
        if self._answers is not None and slot is not None and not seat.is_forecast:
            self._answers.note_place(world, number, slot)

    def _finish(self, action: Finish) -> None:
        outcome = action.outcome
        if self._answers is not None and outcome.status == 0:
            outcome = self._answers.judged(outcome)
        self._stage.end(outcome)

    def _publish(self, action: Publish) -> None:
        self._updates += 1
        self._server.set(update_key(self._updates), action.update.encoded())


def _scopes(world: int) -> tuple[str, str]:
    """What the keys of a world's meeting begin with: the ranks' own, and those of data planes."""
    return f"mesh/{world_scope(world)}", f"plane/{world_scope(world)}"
