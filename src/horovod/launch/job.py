"""One run of a command on all slots: start, watch, end. The loop at the heart of ``horovodrun``.

One thread waits in one selector for output, signals, other hosts and the console; the store serves
the workers on a second one. Whatever ends the job (all done, a failure, a signal, a console that is
gone), the same steps follow: SIGTERM to what is left, SIGKILL after five seconds, output to the
last byte.
"""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from horovod.launch.addresses import store_addresses
from horovod.launch.crew import GRACE_S, Crew, LocalCrew, StartError, Worker
from horovod.launch.environment import Rendezvous
from horovod.launch.fleet import Fleet
from horovod.launch.host_plan import HostPlan, Place, remote_environment
from horovod.launch.job_outcomes import host_loss, worker_failure
from horovod.launch.job_plan import JobOutcome, JobPlan
from horovod.launch.logs import Logs
from horovod.launch.output import Output, Sink, consoles
from horovod.launch.processes import adopt_orphans, describe_exit, reaped, words_to_run
from horovod.launch.python_words import python_arguments
from horovod.launch.remote_crew import RemoteCrew
from horovod.launch.ssh import agent_command, remote_words
from horovod.launch.wakeups import Wakeups
from horovod.launch.watchdog import Watchdog
from horovod.rendezvous.authentication import SECRET_BYTES
from horovod.rendezvous.store_server import StoreServer

__all__ = ["GRACE_S", "JobOutcome", "JobPlan", "open_standard_files", "run_job"]

_PATIENCE_S = 2.0  # with an ssh that has nothing left to do
_MOST_STORE_S = 10.0  # for an agent to find a way to the store


@dataclass
class _Ending:
    """Why the job ends, and how far its end has come."""

    outcome: JobOutcome
    deadline: float
    is_killing: bool = False


def run_job(
    plan: JobPlan, environ: Mapping[str, str], rendezvous: Rendezvous | None = None
) -> JobOutcome:
    """Start the workers, wait for all of them, end the rest when one fails; say how it went.

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
    with (
        closing(Logs(plan.output_directory, [slot.rank for slot in plan.slots])) as logs,
        Wakeups() as wakeups,
        selectors.DefaultSelector() as selector,
        closing(_Job(plan, environ, rendezvous, selector, wakeups, logs)) as job,
    ):
        job.start()
        adopt_orphans()
        return job.run()


def open_standard_files() -> None:
    """A pipe that got one of these numbers would end up as some worker's standard input."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class _Job:
    def __init__(
        self,
        plan: JobPlan,
        environ: Mapping[str, str],
        rendezvous: Rendezvous | None,
        selector: selectors.BaseSelector,
        wakeups: Wakeups,
        logs: Logs,
    ) -> None:
        self._plan = plan
        self._environ = environ
        self._words = words_to_run(plan.command)
        self._rendezvous = rendezvous
        self._secret = rendezvous.secret if rendezvous else os.urandom(SECRET_BYTES)
        self._selector = selector
        self._wakeups = wakeups
        self._watchdog = Watchdog()
        self._stdout, self._stderr = consoles(selector)
        self._output = Output(selector, is_timestamped=plan.is_timestamped)
        self._logs = logs
        self._server: StoreServer | None = None
        self._ending: _Ending | None = None
        self._here = LocalCrew(self._output, self._watchdog, self._outsiders)
        self._fleet = Fleet(
            [self._remote_crew(name) for name in plan.slots_by_host if self._is_other(name)],
            plan.others.start_timeout_s,
        )
        self._crews: tuple[Crew, ...] = (self._here, *self._fleet.crews)
        selector.register(wakeups, selectors.EVENT_READ, self._on_wakeup)

    def start(self) -> None:
        """Start all workers, or the connections to other hosts, whose workers follow."""
        self._say_verbose(
            f"starting {_processes(len(self._plan.slots))}: {shlex.join(self._words)}"
        )
        if not self._fleet.crews:
            self._begin()
            return
        self._say_verbose("Filtering local host names.")
        names = " ".join(crew.hostname for crew in self._fleet.crews)
        self._say_verbose(f"Remote host found: {names}")
        self._say_verbose("Checking ssh on all remote hosts.")
        self._fleet.connect(self._environ)

    def run(self) -> JobOutcome:
        """Wait until all has ended; how it went."""
        while self._ending is None or not self._is_over():
            for key, _ in self._selector.select(self._seconds_to_deadline()):
                key.data()
            self._output.balance()
            for crew in self._fleet.crews:
                crew.balance()
            self._say_if(self._logs.news())
            if self._ending is None:
                self._look_for_an_end()
            elif time.monotonic() >= self._ending.deadline:
                if self._ending.is_killing:
                    break
                self._kill("did not end within 5 s of SIGTERM")
        return self._finish(self._ending)

    def close(self) -> None:
        """Whatever happened: leave nothing behind. Quick after a complete ``run``."""
        self._here.kill_groups()
        for crew in self._fleet.crews:
            crew.child.hang_up()
        deadline = time.monotonic() + _PATIENCE_S
        for crew in self._fleet.crews:
            crew.child.close(deadline)
        self._watchdog.close()
        if self._server is not None:
            self._server.close()

    # How it begins.

    def _is_other(self, hostname: str) -> bool:
        return hostname in self._plan.others.addresses

    def _remote_crew(self, hostname: str) -> RemoteCrew:
        command = agent_command(os.getcwd(), sys.executable or "python3", python_arguments("agent"))
        return RemoteCrew(
            self._plan.slots_by_host[hostname],
            remote_words(hostname, command, self._plan.others.ssh, self._environ),
            selector=self._selector,
            watchdog=self._watchdog,
            consoles=(self._stdout, self._stderr),
            sinks=self._sinks,
            call=self._plan.call,
            listener=self,
        )

    def _begin(self) -> None:
        """All hosts are there: start the workers."""
        stores = self._stores()
        for crew in self._fleet.crews:
            environment = remote_environment(self._environ)
            crew.start(self._host_plan(crew.hostname, environment, stores))
        for hostname in self._plan.slots_by_host:
            if not self._is_other(hostname):
                self._begin_here(self._host_plan(hostname, self._environ, stores))

    def _stores(self) -> tuple[tuple[str, int], ...]:
        """Where the job's store is, from here on."""
        if self._rendezvous is not None:
            return ((self._rendezvous.address, self._rendezvous.port),)
        others = self._plan.others
        seen = self._fleet.seen_addresses()
        addresses = store_addresses(others.addresses, seen, others.interfaces)
        self._server = StoreServer(
            self._secret,
            addresses=[(address, 0) for address in addresses],
            report=self._wakeups.note,
        )
        stores = tuple(self._server.addresses)
        self._server.start()
        self._say_verbose("Launched horovod server.")
        return stores

    def _begin_here(self, plan: HostPlan) -> None:
        call = self._plan.call
        try:
            self._here.start(
                plan,
                Rendezvous(*plan.stores[0], self._secret),
                sinks=self._sinks,
                descriptors=call.for_worker if call else lambda rank: {},
                reads_stdin=call is None,
                on_started=self.started,
            )
        except StartError as error:
            self.troubled(error.status, str(error))

    def _host_plan(
        self, hostname: str, environment: Mapping[str, str], stores: tuple[tuple[str, int], ...]
    ) -> HostPlan:
        plan = self._plan
        slots = plan.slots_by_host[hostname]
        return HostPlan(
            words=tuple(self._words),
            environment=environment,
            places=tuple(Place(slot, plan.environment_of(slot.rank)) for slot in slots),
            stores=stores,
            secret=self._secret,
            store_timeout_s=min(_MOST_STORE_S, plan.others.start_timeout_s / 2),
            interfaces=plan.interfaces,
            has_call=plan.call is not None,
        )

    def _sinks(self, rank: int) -> tuple[Sink, Sink]:
        out_log, err_log = self._logs.of(rank)
        return (
            self._output.lines(f"[{rank}]<stdout>:", self._stdout, out_log),
            self._output.lines(f"[{rank}]<stderr>:", self._stderr, err_log),
        )

    def _outsiders(self) -> list[int]:
        return [crew.child.pid for crew in self._fleet.crews if crew.child.is_running]

    # What happens meanwhile; see remote_crew.Listener.

    def greeted(self, crew: RemoteCrew) -> None:
        self._say_verbose(f"{crew.hostname} has answered")
        self._go_on()

    def started(self, worker: Worker) -> None:
        self._say_verbose(f"started {worker.name}")

    def ended(self, worker: Worker) -> None:
        if self._ending is None:
            self._judge([worker])

    def troubled(self, status: int, text: str) -> None:
        if self._ending is None:
            self._end(JobOutcome(status, f"horovodrun: {text}\n"))

    def refused(self, crew: RemoteCrew) -> None:
        self._say_verbose(f"{crew.hostname}: {crew.child.how_it_ended}; trying again")

    def lost(self, crew: RemoteCrew) -> None:
        if self._ending is not None:
            return
        if self._server is None:
            self._go_on()
            return
        text = f"{crew.hostname}: {crew.problem}"
        self._say(f"{text}; ending {_processes(self._living())}")
        self._end(host_loss(crew))

    def _go_on(self) -> None:
        """Once all hosts have answered."""
        if self._ending is not None or not self._fleet.has_answered:
            return
        if failures := self._fleet.failures():
            self._end(JobOutcome(1, failures))
            return
        self._say_verbose("SSH was successful into all the remote hosts.")
        try:
            self._begin()
        except (OSError, ValueError) as error:
            self._end(JobOutcome(1, f"horovodrun: cannot open the job's store: {error}\n"))

    def _look_for_an_end(self) -> None:
        if self._stdout.is_broken or self._stderr.is_broken:
            text = "horovodrun: nobody reads the output any more\n"
            self._end(JobOutcome(128 + signal.SIGPIPE, text))
        elif (deadline := self._fleet.deadline) is not None and time.monotonic() >= deadline:
            self._end(JobOutcome(1, self._fleet.delays()))

    def _seconds_to_deadline(self) -> float | None:
        if self._ending is not None:
            times = [self._ending.deadline]
        else:
            times = [t for t in (self._fleet.deadline, self._fleet.next_retry) if t is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _on_wakeup(self) -> None:
        for text in self._wakeups.take_notes():
            self._say(text)
        signals = self._wakeups.take_signals()
        if signal.SIGCHLD in signals:
            self._reap()
        for signum in signals:
            if signum != signal.SIGCHLD:
                self._on_signal(signum)

    def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if self._ending is not None:
            self._kill(f"did not end before a second signal ({name})")
            return
        again = "; once more kills them at once" if signum == signal.SIGINT else ""
        self._say(f"{name}: ending {_processes(self._living())}{again}")
        self._end(JobOutcome(128 + signum))

    def _reap(self) -> None:
        ended = []
        for pid, exit_code in reaped():
            if pid == self._watchdog.pid:
                self._watchdog.was_reaped()
            elif worker := self._here.note_exit(pid, exit_code):
                ended.append(worker)
            else:
                any(crew.note_exit(pid, exit_code) for crew in self._fleet.crews)
        self._here.note_ended_groups()
        if self._ending is None:
            self._judge(ended)

    def _judge(self, ended: Sequence[Worker]) -> None:
        for worker in ended:
            self._say_verbose(f"{worker.name} {describe_exit(worker.exit_code or 0)}")
        failed = [worker for worker in ended if self._has_failed(worker)]
        if failed:
            # Seen at one moment, the one that a signal ended is the likelier cause.
            first = min(failed, key=lambda worker: (worker.exit_code or 0) > 0)
            living = self._living()
            others = f"; ending {_processes(living)}" if living else ""
            self._say(f"{first.name} {describe_exit(first.exit_code or 0)}{others}")
            self._end(worker_failure(first))
        elif self._successes() == len(self._plan.slots):
            self._end(JobOutcome(0))

    def _has_failed(self, worker: Worker) -> bool:
        call = self._plan.call
        return worker.exit_code != 0 or bool(call and not call.has_result(worker.slot.rank))

    def _successes(self) -> int:
        workers = [worker for crew in self._crews for worker in crew.workers]
        return sum(1 for worker in workers if worker.exit_code == 0)

    def _living(self) -> int:
        return sum(crew.living for crew in self._crews)

    # How it ends.

    def _end(self, outcome: JobOutcome) -> None:
        self._ending = _Ending(outcome, time.monotonic() + GRACE_S)
        for crew in self._crews:
            crew.end(reaches_strays=outcome.status != 0)

    def _kill(self, reason: str) -> None:
        assert self._ending is not None
        late = [name for crew in self._crews for name in crew.late()]
        if late:
            self._say(f"killing {', '.join(late)}, or children of it, which {reason}")
        self._ending.is_killing = True
        self._ending.deadline = time.monotonic() + GRACE_S
        for crew in self._crews:
            crew.kill()

    def _is_over(self) -> bool:
        return all(crew.is_gone for crew in self._crews)

    def _finish(self, ending: _Ending) -> JobOutcome:
        # Signals act as usual again: only the console can still take long.
        self._wakeups.restore()
        self._output.drain()
        stuck = [name for crew in self._crews for name in crew.late()]
        if stuck:
            self._say(f"these do not end although they got SIGKILL: {', '.join(stuck)}")
        self._say_if(self._logs.news())
        self._say_if(self._logs.summary())
        if self._plan.call is None:
            self._stderr.write(ending.outcome.text.encode(errors="surrogateescape"))
        self._stdout.flush()
        self._stderr.flush()
        return ending.outcome

    def _say(self, text: str) -> None:
        self._stderr.write(f"horovodrun: {text}\n".encode(errors="surrogateescape"))

    def _say_if(self, text: str) -> None:
        if text:
            self._say(text)

    def _say_verbose(self, text: str) -> None:
        if self._plan.is_verbose:
            self._say(text)


def _processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"
