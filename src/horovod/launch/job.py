"""One run of a command on all slots: start, watch, end. The loop at the heart of ``horovodrun``.

One thread waits in one selector for output, signals and the console; the store serves the workers
on a second one. Whatever ends the job (all done, a failure, a signal, a console that is gone), the
same steps follow: SIGTERM to what is left, SIGKILL after five seconds, output to the last byte.
"""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from horovod.launch.call import CallFiles
from horovod.launch.environment import Rendezvous, worker_environment
from horovod.launch.hosts import Slot
from horovod.launch.logs import Logs
from horovod.launch.output import Output, consoles
from horovod.launch.processes import (
    adopt_orphans,
    descendants,
    describe_exit,
    signal_group,
    signal_processes,
    spawn,
    words_to_run,
)
from horovod.launch.wakeups import Wakeups
from horovod.launch.watchdog import Watchdog
from horovod.rendezvous.authentication import SECRET_BYTES
from horovod.rendezvous.store_server import StoreServer

__all__ = ["GRACE_S", "JobOutcome", "JobPlan", "open_standard_files", "run_job"]

# Between SIGTERM and SIGKILL, and again until the launcher gives up on what does not die.
GRACE_S = 5.0

_CANNOT_START = 126
_NOT_FOUND = 127


@dataclass(frozen=True)
class JobPlan:
    """What to run where.

    ``extra_environment`` goes to every worker on top of the launcher's, and on top of that what
    ``rank_environment`` has for its rank, unless that is empty. In ``output_directory``
    each rank's lines are kept as ``rank.<R>/stdout`` and ``stderr``. With ``call``, the files of
    ``horovod.run``, workers get their descriptors and no standard input, one that exits with 0
    without a result has failed, and the last lines of a failed job are left to the caller.
    ``is_timestamped`` begins each line of a worker with the time.
    """

    command: tuple[str, ...]
    slots: tuple[Slot, ...]
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    rank_environment: tuple[Mapping[str, str], ...] = ()
    is_verbose: bool = False
    output_directory: Path | None = None
    call: CallFiles | None = None
    is_timestamped: bool = False

    def environment_of(self, rank: int) -> dict[str, str]:
        """What this rank's worker gets beside its place and the launcher's own environment."""
        of_rank = self.rank_environment[rank] if self.rank_environment else {}
        return {**self.extra_environment, **of_rank}


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended: the launcher's exit status, and why in words if that is not 0.

    ``slot``, ``pid`` and ``exit_code`` are those of the worker that failed first, if one did.
    """

    status: int
    text: str = ""
    slot: Slot | None = None
    pid: int = 0
    exit_code: int = 0


@dataclass(eq=False)
class _Worker:
    slot: Slot
    pid: int
    exit_code: int | None = None  # negative: the signal that ended it
    is_group_gone: bool = False

    @property
    def name(self) -> str:
        return f"rank {self.slot.rank} on {self.slot.hostname} (pid {self.pid})"


@dataclass
class _Ending:
    """Why the job ends, and how far its end has come."""

    outcome: JobOutcome
    deadline: float
    is_killing: bool = False


def run_job(
    plan: JobPlan, environ: Mapping[str, str], rendezvous: Rendezvous | None = None
) -> JobOutcome:
    """Run ``plan`` to its end; the outcome has the exit status of ``horovodrun``.

    0 if every worker exited with 0; 1 after a failure; 126 or 127 if the command cannot be run or
    found; 128 + signal after a signal. Workers' output goes to this process's standard output and
    error; rank 0 inherits standard input, the others read nothing. Main thread only: it takes over
    the signals while it runs. No process of a failed or interrupted job is left on return.

    ``rendezvous`` is that of a job of which ``plan`` is a part; a whole job gets a store here.

    Raises:
        OSError: the output directory cannot be made or written. Nothing was started then.
    """
    open_standard_files()
    with (
        closing(Logs(plan.output_directory, [slot.rank for slot in plan.slots])) as logs,
        Wakeups() as wakeups,
        selectors.DefaultSelector() as selector,
    ):
        server = None
        if rendezvous is None:
            secret = os.urandom(SECRET_BYTES)
            server = StoreServer(secret, report=wakeups.note)
            rendezvous = Rendezvous(*server.address, secret)
        watchdog = Watchdog()
        job = _Job(plan, selector, wakeups, watchdog, logs)
        try:
            job.start(environ, rendezvous)
            if server is not None:
                server.start()
            adopt_orphans()
            return job.run()
        finally:
            job.kill_all()
            watchdog.close()
            if server is not None:
                server.close()


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
        selector: selectors.BaseSelector,
        wakeups: Wakeups,
        watchdog: Watchdog,
        logs: Logs,
    ) -> None:
        self._plan = plan
        self._selector = selector
        self._wakeups = wakeups
        self._watchdog = watchdog
        self._stdout, self._stderr = consoles(selector)
        self._output = Output(selector, is_timestamped=plan.is_timestamped)
        self._logs = logs
        self._workers: dict[int, _Worker] = {}
        self._ending: _Ending | None = None
        selector.register(wakeups, selectors.EVENT_READ, self._on_wakeup)

    def start(self, environ: Mapping[str, str], rendezvous: Rendezvous) -> None:
        """Start one worker per slot; the first that cannot be started ends the job."""
        words = words_to_run(self._plan.command)
        self._say_verbose(f"starting {len(self._plan.slots)} processes: {shlex.join(words)}")
        for slot in self._plan.slots:
            extra = self._plan.environment_of(slot.rank)
            environment = worker_environment(environ, slot, rendezvous, extra)
            call = self._plan.call
            try:
                pipes = spawn(
                    words,
                    environment,
                    inherits_stdin=slot.rank == 0 and call is None,
                    descriptors=call.for_worker(slot.rank) if call else {},
                )
            except OSError as error:
                self._end(_explain_no_start(words[0], slot, error))
                return
            worker = _Worker(slot, pipes.pid)
            self._watchdog.add(pipes.pid)
            self._workers[pipes.pid] = worker
            out_log, err_log = self._logs.of(slot.rank)
            self._output.add(pipes.stdout_fd, f"[{slot.rank}]<stdout>:", self._stdout, out_log)
            self._output.add(pipes.stderr_fd, f"[{slot.rank}]<stderr>:", self._stderr, err_log)
            self._say_verbose(f"started {worker.name}")

    def run(self) -> JobOutcome:
        """Wait until all has ended; how it went."""
        while self._ending is None or not self._is_over():
            for key, _ in self._selector.select(self._seconds_to_deadline()):
                key.data()
            self._output.balance()
            self._say_if(self._logs.news())
            if self._ending is None and (self._stdout.is_broken or self._stderr.is_broken):
                text = "horovodrun: nobody reads the output any more\n"
                self._end(JobOutcome(128 + signal.SIGPIPE, text))
            elif self._ending is not None and time.monotonic() >= self._ending.deadline:
                if self._ending.is_killing:
                    break
                self._kill("did not end within 5 s of SIGTERM")
        return self._finish(self._ending)

    def _seconds_to_deadline(self) -> float | None:
        if self._ending is None:
            return None
        return max(0.0, self._ending.deadline - time.monotonic())

    def kill_all(self) -> None:
        """Whatever happened: leave no worker behind. Does nothing after a complete ``run``."""
        for worker in self._workers.values():
            if not worker.is_group_gone:
                signal_group(worker.pid, signal.SIGKILL)

    def _finish(self, ending: _Ending) -> JobOutcome:
        # Signals act as usual again: only the console can still take long.
        self._wakeups.restore()
        self._output.drain()
        stuck = [w.name for w in self._workers.values() if not w.is_group_gone]
        if stuck:
            self._say(f"these do not end although they got SIGKILL: {', '.join(stuck)}")
        self._say_if(self._logs.news())
        self._say_if(self._logs.summary())
        if self._plan.call is None:
            self._stderr.write(ending.outcome.text.encode(errors="surrogateescape"))
        self._stdout.flush()
        self._stderr.flush()
        return ending.outcome

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
        living = sum(1 for worker in self._workers.values() if worker.exit_code is None)
        again = "; once more kills them at once" if signum == signal.SIGINT else ""
        self._say(f"{name}: ending {_processes(living)}{again}")
        self._end(JobOutcome(128 + signum))

    def _reap(self) -> None:
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self._watchdog.pid:
                self._watchdog.was_reaped()
            elif pid in self._workers:
                self._workers[pid].exit_code = os.waitstatus_to_exitcode(status)
                ended.append(self._workers[pid])
        self._note_ended_groups()
        if self._ending is None:
            self._judge(ended)

    def _judge(self, ended: Sequence[_Worker]) -> None:
        for worker in ended:
            self._say_verbose(f"{worker.name} {describe_exit(worker.exit_code or 0)}")
        failed = [worker for worker in ended if self._has_failed(worker)]
        if failed:
            # Seen at one moment, the one that a signal ended is the likelier cause.
            first = min(failed, key=lambda worker: (worker.exit_code or 0) > 0)
            living = sum(1 for worker in self._workers.values() if worker.exit_code is None)
            others = f"; ending {_processes(living)}" if living else ""
            self._say(f"{first.name} {describe_exit(first.exit_code or 0)}{others}")
            self._end(_failure(first))
        elif all(worker.exit_code == 0 for worker in self._workers.values()):
            self._end(JobOutcome(0))

    def _has_failed(self, worker: _Worker) -> bool:
        call = self._plan.call
        return worker.exit_code != 0 or bool(call and not call.has_result(worker.slot.rank))

    def _note_ended_groups(self) -> None:
        for worker in self._workers.values():
            if worker.exit_code is not None and not worker.is_group_gone:
                worker.is_group_gone = not signal_group(worker.pid, 0)
                if worker.is_group_gone:
                    self._watchdog.drop(worker.pid)

    def _end(self, outcome: JobOutcome) -> None:
        self._ending = _Ending(outcome, time.monotonic() + GRACE_S)
        # A stopped process sees SIGTERM once it continues.
        self._send(signal.SIGTERM, signal.SIGCONT)

    def _kill(self, reason: str) -> None:
        assert self._ending is not None
        late = [w.name for w in self._workers.values() if not w.is_group_gone]
        if late:
            self._say(f"killing {', '.join(late)}, or children of it, which {reason}")
        self._ending.is_killing = True
        self._ending.deadline = time.monotonic() + GRACE_S
        self._send(signal.SIGKILL)

    def _send(self, *signums: int) -> None:
        groups = [w.pid for w in self._workers.values() if not w.is_group_gone]
        strays = self._strays(groups)
        for signum in signums:
            for group in groups:
                signal_group(group, signum)
            signal_processes(strays, signum)

    def _strays(self, groups: Sequence[int] = ()) -> list[int]:
        """Descendants outside the workers' groups; after a success those may live on."""
        if self._ending is None or self._ending.outcome.status == 0 or not self._workers:
            return []
        pids = descendants(but_not=(self._watchdog.pid,))
        return [pid for pid in pids if _group_of(pid) not in groups]

    def _is_over(self) -> bool:
        self._note_ended_groups()
        if not all(worker.is_group_gone for worker in self._workers.values()):
            return False
        return not self._strays()

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


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _failure(first: _Worker) -> JobOutcome:
    """The text is the last lines of a failed job, in the form that tools look for."""
    text = (
        "Horovod detected that one or more processes exited with non-zero status; the others have "
        f"been ended. The first was {first.name}, which {describe_exit(first.exit_code or 0)}:\n"
        f"Process name: {first.slot.rank}\n"
        f"Exit code: {first.exit_code}\n"
    )
    return JobOutcome(1, text, first.slot, first.pid, first.exit_code or 0)


def _explain_no_start(word: str, slot: Slot, error: OSError) -> JobOutcome:
    """Exit status, as a shell gives it, and message."""
    if isinstance(error, FileNotFoundError):
        where = "" if "/" in word else " in PATH"
        return JobOutcome(_NOT_FOUND, f"horovodrun: command not found{where}: {word}\n")
    if isinstance(error, PermissionError):
        text = f"horovodrun: {word}: not executable: {error.strerror}\n"
        return JobOutcome(_CANNOT_START, text)
    text = f"horovodrun: cannot start rank {slot.rank} ({word}): {error.strerror}\n"
    return JobOutcome(_CANNOT_START, text)
