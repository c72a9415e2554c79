"""What every job has, of fixed size or elastic: a loop, worker groups, consoles and an ending.

One thread waits in one selector for output, signals, other hosts and the console. Whatever ends the
job (all done, a failure, a signal, a console that is gone), the same steps follow: SIGTERM to what
is left, SIGKILL after five seconds, output to the last byte. A ``JobHandler`` decides what the end
of a worker or the loss of a host means.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Protocol

from horovod.launch.calls.call import WorkerFiles
from horovod.launch.jobs.last_words import LastWords
from horovod.launch.jobs.report import new_report, outcome_writer, say_last
from horovod.launch.jobs.status_line import StatusLine
from horovod.launch.model.hosts import counted
from horovod.launch.model.job_plan import EmbeddedAgentAddress, JobOutcome, JobPlan
from horovod.launch.remote.remote_group import Listener, RemoteWorkerGroup
from horovod.launch.workers.logs import LogFile, Logs
from horovod.launch.workers.output import Console, Lines, Output, Sink, consoles
from horovod.launch.workers.prefixes import full_prefix, is_dumb, short_prefix
from horovod.launch.workers.processes import Watchdog, adopt_orphans, reaped, signal_group
from horovod.launch.workers.wakeups import Wakeups
from horovod.launch.workers.worker_group import GRACE_S, LocalWorkerGroup, Worker, WorkerGroup
from horovod.rendezvous.base.descriptors import Reserve, raised_limit

_CLOSE_S = 2.0  # for an ssh that has nothing left to do
# The time before the workers are ended: survivors record the last events of a killed rank, and
# their own errors.
_LAST_WORDS_S = 0.1


class JobHandler(Listener, Protocol):
    """A job as its loop needs it; the loop calls all of this."""

    @property
    def deadline(self) -> float | None:
        """When ``turn`` has something to do, if nothing happens before."""

    def turn(self) -> None:
        """Do what is due; called in every turn of the loop until the job ends."""


@contextmanager
def open_job_loop(
    plan: JobPlan,
    environ: Mapping[str, str],
    numbers: Sequence[int] = (),
    *,
    is_continued: bool = False,
) -> Iterator[JobLoop]:
    """A loop that leaves nothing behind. It takes over the signals; main thread only.

    ``numbers`` are the workers whose output files are created now, or continued. Meanwhile this
    process, but none of its workers, may have as many descriptors as the system allows.

    Raises:
        OSError: the output directory cannot be made or written. Nothing was started then.
    """
    with (
        closing(Logs(plan.output_directory, numbers, is_continued=is_continued)) as logs,
        raised_limit() as file_limit,
        Wakeups() as wakeups,
        selectors.DefaultSelector() as selector,
        closing(JobLoop(plan, environ, selector, wakeups, logs, file_limit)) as loop,
    ):
        yield loop


@dataclass
class _Ending:
    """Why the job ends, and how far its end has come."""

    outcome: JobOutcome
    deadline: float
    is_killing: bool = False


@dataclass(eq=False, repr=False)
class JobLoop:
    """Worker groups and the loop that serves them. Keys of ``selector`` carry what to call.

    ``world_size`` is the number of ranks that the last line tells; an elastic job changes it.
    ``environment`` has the variables that workers on this machine need for the status line.
    """

    _plan: JobPlan
    environ: InitVar[Mapping[str, str]]
    selector: selectors.BaseSelector
    wakeups: Wakeups
    logs: Logs
    _file_limit: int | None = None

    def __post_init__(self, environ: Mapping[str, str]) -> None:
        plan, selector = self._plan, self.selector
        self.watchdog = Watchdog()
        self._report = new_report(plan, environ)
        self._write_outcome = outcome_writer(plan, environ)
        self._last_words = LastWords()
        self._reserve = Reserve()
        self._stdout, self._stderr = consoles(selector)
        self._output = Output(selector)
        self._talks = not (plan.is_quiet or plan.is_silent) and plan.call is None
        has_status = self._talks and self._stderr.is_terminal and not is_dumb(environ)
        self._status = StatusLine(is_shown=has_status)
        self.environment = self._status.environment
        self.world_size = plan.elastic.limits.np if plan.elastic else len(plan.slots)
        self._here: LocalWorkerGroup | None = None
        self._others: list[RemoteWorkerGroup] = []
        self._children: dict[int, Callable[[int], None]] = {}
        self._handler: JobHandler | None = None
        self._ending: _Ending | None = None
        selector.register(self.wakeups, selectors.EVENT_READ, self._on_wakeup)

    # The worker groups.

    def local_group(self, listener: Listener) -> LocalWorkerGroup:
        """The group of this machine; to be asked for once."""
        self._here = LocalWorkerGroup(
            self._output,
            self.watchdog,
            sinks=self._sinks,
            listener=listener,
            other_children=self._other_children,
            file_limit=self._file_limit,
        )
        return self._here

    def remote_group(
        self,
        hostname: str,
        way: Sequence[str] | EmbeddedAgentAddress,
        *,
        listener: Listener,
        call: WorkerFiles | None = None,
    ) -> RemoteWorkerGroup:
        """A group on another host, at any time; not connected yet. ``way``: see there.

        The loop drops it once it ``is_closed``, after a loss or ``dismiss``.
        """
        group = RemoteWorkerGroup(
            hostname,
            way,
            selector=self.selector,
            watchdog=self.watchdog,
            consoles=(self._stdout, self._stderr),
            sinks=self._sinks,
            call=call,
            listener=listener,
        )
        self._others.append(group)
        return group

    def adopt(self, pid: int, on_exit: Callable[[int], None]) -> None:
        """Look after a child of the job that leads a process group. It never outlives the job.

        ``on_exit`` gets its exit code, negative for a signal.
        """
        self._children[pid] = on_exit
        self.watchdog.add(pid)

    @property
    def living(self) -> int:
        """How many workers have not ended, as far as is known."""
        return sum(group.living for group in self.groups)

    @property
    def groups(self) -> tuple[WorkerGroup, ...]:
        """The groups that are not closed."""
        return (*((self._here,) if self._here else ()), *self._others)

    def _sinks(self, worker: Worker) -> tuple[Sink, Sink]:
        out_log, err_log = self.logs.of(worker.number)
        watch = self._last_words.watch(worker)
        stdout = self._lines(worker, "stdout", self._stdout, out_log)
        stderr = self._lines(worker, "stderr", self._stderr, err_log, watch)
        return stdout, stderr

    def _lines(
        self,
        worker: Worker,
        stream: str,
        console: Console,
        log: LogFile | None,
        watcher: Callable[[bytes], None] | None = None,
    ) -> Sink:
        def full() -> str:
            return full_prefix(worker.rank_info.rank, stream)

        def short() -> str:
            return short_prefix(worker.rank_info.rank, stream, os.environ)

        lines = partial(Lines, is_timestamped=self._plan.is_timestamped, watcher=watcher)
        if not console.is_terminal or self._plan.has_full_prefix:
            return lines(full, console, log)
        return lines(short, console, log, log_prefix=full)

    def _other_children(self) -> list[int]:
        ssh = [each.child.pid for each in self._others if each.command and each.child.is_running]
        return [*ssh, *self._children]

    # Lines for the user.

    def say(self, text: str, *, is_shown: bool = True) -> None:
        """Print a line on standard error, unless it is empty; the report gets it in any case."""
        if text and self._report is not None:
            self._report.note(text)
        if text and is_shown and not self._plan.is_silent:
            self._stderr.write(f"horovodrun: {text}\n".encode(errors="surrogateescape"))

    def say_later(self, text: str) -> None:
        """Print it in the loop; from any thread."""
        self.wakeups.call(lambda: self.say(text))

    def say_verbose(self, text: str) -> None:
        """Print a line if the user has asked for more."""
        self.say(text, is_shown=self._plan.is_verbose)

    # The loop.

    def run(self, handler: JobHandler) -> JobOutcome:
        """Serve ``handler`` until ``end`` was called and all processes have ended."""
        self._handler = handler
        adopt_orphans()
        while self._ending is None or not all(group.is_gone for group in self.groups):
            for key, _ in self.selector.select(self._seconds_to_deadline(handler)):
                key.data()
            self._balance()
            self._show_status()
            if self._ending is None:
                self._take_turn(handler)
            elif time.monotonic() >= self._ending.deadline:
                if self._ending.is_killing:
                    break
                self._kill("did not end within 5 s of SIGTERM")
        return self._finish(self._ending)

    def write_report(self, told: Mapping[str, bytes], outcome: JobOutcome) -> None:
        """Write the file of ``--report``, if there is to be one; ``told``: see ``JobReport``."""
        is_written = self._report is not None and self._report.write(told, outcome, say_last)
        if is_written and self._talks:
            say_last(f"report: {self._plan.report}")

    def _seconds_to_deadline(self, handler: JobHandler) -> float | None:
        ending = self._ending
        owns = (handler.deadline, self._status.deadline) if ending is None else (ending.deadline,)
        shown = [console.deadline for console in (self._stdout, self._stderr)]
        deadlines = (*owns, *shown, *(group.deadline for group in self.groups))
        times = [t for t in deadlines if t is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _balance(self) -> None:
        self._output.balance()
        self._stdout.show_begun()
        self._stderr.show_begun()
        for group in self.groups:
            group.balance()
        self._others = [group for group in self._others if not group.is_closed]
        self.say(self.logs.news())

    def _show_status(self) -> None:
        ranks = len(self._plan.slots) or self.living or self.world_size
        if self._ending is None and (text := self._status.text(ranks)) is not None:
            self._stderr.show_status(text)

    def _take_turn(self, handler: JobHandler) -> None:
        if (loss := self._loss_of_output()) is None:
            handler.turn()
        else:
            self.end(loss)

    def _loss_of_output(self) -> JobOutcome | None:
        """The outcome of a job whose output cannot all be written; None if it could so far."""
        for console in (self._stdout, self._stderr):
            if console.is_broken:
                return JobOutcome(128 + signal.SIGPIPE, f"horovodrun: {console.problem}\n")
        return None

    def _on_wakeup(self) -> None:
        signals = self.wakeups.take()
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
        self.say(f"{name}: ending {counted(self.living)}{again}")
        self.end(JobOutcome(128 + signum))

    def _reap(self) -> None:
        ended = []
        for pid, exit_code in reaped():
            if pid == self.watchdog.pid:
                self.watchdog.was_reaped()
            elif self._here and (worker := self._here.note_exit(pid, exit_code)):
                ended.append(worker)
            elif on_exit := self._children.pop(pid, None):
                self.watchdog.drop(pid)
                on_exit(exit_code)
            else:
                any(group.note_exit(pid, exit_code) for group in self._others)
        if self._here is not None:
            self._here.note_ended_groups()
        if ended and self._handler is not None:
            self._handler.ended(ended)

    # The end.

    @property
    def is_ending(self) -> bool:
        """Whether ``end`` has been called."""
        return self._ending is not None

    def end(self, outcome: JobOutcome) -> None:
        """End the job. After a success, processes outside the workers' groups may live on.

        A second call changes nothing.
        """
        if self._ending is not None:
            return
        if outcome.status != 0:
            time.sleep(_LAST_WORDS_S)
        self._ending = _Ending(outcome, time.monotonic() + GRACE_S)
        self._reserve.release()
        for pid in self._children:
            signal_group(pid, signal.SIGTERM)
        for group in self.groups:
            group.end(reaches_strays=outcome.status != 0)

    def _late(self) -> str:
        return ", ".join(name for group in self.groups for name in group.late())

    def _kill(self, reason: str) -> None:
        assert self._ending is not None
        if late := self._late():
            self.say(f"killing {late}, or children of it, which {reason}")
        self._ending.is_killing = True
        self._ending.deadline = time.monotonic() + GRACE_S
        for group in self.groups:
            group.kill()

    def _finish(self, ending: _Ending) -> JobOutcome:
        # Signals act as usual again: only the console can still take long.
        self.wakeups.restore()
        self._output.drain()
        if late := self._late():
            self.say(f"these do not end although they got SIGKILL: {late}")
        self._stderr.hide_status()
        self.say(self.logs.news())
        self.say(self.logs.summary())
        plan, is_killed, outcome = self._plan, ending.is_killing, ending.outcome
        self._stdout.flush()
        if outcome.status == 0 and plan.call is None:  # a caller has its results all the same
            outcome = self._loss_of_output() or outcome
        outcome = self._last_words.explained(plan, outcome, is_killed=is_killed)
        if self._talks and outcome.status == 0:
            self.say(self._status.last(self.world_size))
        self.say(self._write_outcome(outcome))
        if plan.call is None:  # the caller of a function raises the outcome as an error
            self._stderr.write(outcome.text.encode(errors="surrogateescape"))
        self._stderr.flush()
        return outcome

    def close(self) -> None:
        """Leave nothing behind, whatever happened. Quick after a complete ``run``."""
        self._reserve.release()
        self._status.close()
        if self._here is not None:
            self._here.kill_groups()
        for pid in self._children:
            signal_group(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for group in self._others:
            group.child.hang_up()
        deadline = time.monotonic() + _CLOSE_S
        for group in self._others:
            group.child.close(deadline)
        self.watchdog.close()
