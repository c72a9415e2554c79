"""What every job has, whether its size is fixed or not: a loop, crews, consoles and an ending.

One thread waits in one selector for output, signals, other hosts and the console. Whatever ends the
job (all done, a failure, a signal, a console that is gone), the same steps follow: SIGTERM to what
is left, SIGKILL after five seconds, output to the last byte. What a worker's end or a host's loss
means is decided by the job, a ``JobHandler``.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from horovod.launch.model.job_plan import EmbeddedAgentAddress, JobOutcome
from horovod.launch.remote.remote_group import Listener, RemoteWorkerGroup
from horovod.launch.workers.logs import Logs
from horovod.launch.workers.output import Output, Sink, consoles
from horovod.launch.workers.processes import adopt_orphans, reaped, signal_group
from horovod.launch.workers.wakeups import Wakeups
from horovod.launch.workers.watchdog import Watchdog
from horovod.launch.workers.worker_group import GRACE_S, LocalWorkerGroup, Worker, WorkerGroup
from horovod.rendezvous.base.descriptors import Reserve, raised_limit

if TYPE_CHECKING:
    from horovod.launch.calls.call import WorkerFiles

__all__ = ["JobHandler", "JobLoop", "OutputOptions", "counted", "open_job_loop"]

_PATIENCE_S = 2.0  # with an ssh that has nothing left to do


class JobHandler(Listener, Protocol):
    """A job as its stage needs it; all is called in the loop."""

    @property
    def deadline(self) -> float | None:
        """When ``turn`` has something to do, if nothing happens before."""

    def turn(self) -> None:
        """Do what is due; called in every turn of the loop until the job ends."""


# Before the others are ended: a survivor writes down what a killed rank did last, and its error.
_LAST_WORDS_S = 0.1


@dataclass(frozen=True)
class OutputOptions:
    """How a job speaks. ``tells_outcome``: its last lines say why it failed; ``is_silent``: there
    is nothing to read but what workers write.

    ``note`` hears of all that is said, and would be if it were verbose.
    ``parting_words``, asked for when all has ended, go before them if there are any.
    """

    is_verbose: bool = False
    is_timestamped: bool = False
    is_silent: bool = False
    tells_outcome: bool = True
    note: Callable[[str], None] | None = None
    parting_words: Callable[[JobOutcome], str] = lambda outcome: ""


@contextmanager
def open_job_loop(logs: Logs, options: OutputOptions) -> Iterator[JobLoop]:
    """A stage that leaves nothing behind. It takes over the signals; main thread only.

    Meanwhile this process, but no worker of it, may have as many descriptors as the system allows.
    """
    with (
        raised_limit() as file_limit,
        Wakeups() as wakeups,
        selectors.DefaultSelector() as selector,
        closing(JobLoop(selector, wakeups, logs, options, file_limit)) as loop,
    ):
        yield loop


def counted(count: int) -> str:
    """``1 process``, ``2 processes``."""
    return f"{count} process" if count == 1 else f"{count} processes"


@dataclass
class _Ending:
    """Why the job ends, and how far its end has come."""

    outcome: JobOutcome
    deadline: float
    is_killing: bool = False


class JobLoop:
    """Crews and the loop that serves them. Keys of ``selector`` carry what to call."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        wakeups: Wakeups,
        logs: Logs,
        options: OutputOptions,
        file_limit: int | None = None,
    ) -> None:
        self.selector = selector
        self.wakeups = wakeups
        self._file_limit = file_limit
        self._reserve = Reserve()
        self.watchdog = Watchdog()
        self._stdout, self._stderr = consoles(selector)
        self._output = Output(selector, is_timestamped=options.is_timestamped)
        self._logs = logs
        self._options = options
        self._here: LocalWorkerGroup | None = None
        self._others: list[RemoteWorkerGroup] = []
        self._children: dict[int, Callable[[int], None]] = {}
        self._handler: JobHandler | None = None
        self._ending: _Ending | None = None
        selector.register(wakeups, selectors.EVENT_READ, self._on_wakeup)

    # Who is on it.

    def local_group(self, listener: Listener) -> LocalWorkerGroup:
        """The crew of this machine; to be asked for once."""
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
        """A crew on another host, at any time; it is not connected yet. For ``way`` see there.

        It leaves by itself once it ``is_closed``: after a loss, or ``dismiss``.
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
        """Look after a child of the job's own that leads a process group.

        ``on_exit`` gets its exit code, negative for a signal. It never outlives the job.
        """
        self._children[pid] = on_exit
        self.watchdog.add(pid)

    @property
    def living(self) -> int:
        """How many workers have not ended, as far as can be known."""
        return sum(group.living for group in self.groups)

    @property
    def groups(self) -> tuple[WorkerGroup, ...]:
        """Those that are not closed."""
        return (*((self._here,) if self._here else ()), *self._others)

    def _sinks(self, worker: Worker) -> tuple[Sink, Sink]:
        out_log, err_log = self._logs.of(worker.number)
        return (
            self._output.lines(
                lambda: f"[{worker.rank_info.rank}]<stdout>:", self._stdout, out_log
            ),
            self._output.lines(
                lambda: f"[{worker.rank_info.rank}]<stderr>:", self._stderr, err_log
            ),
        )

    def _other_children(self) -> list[int]:
        ssh = [group.child.pid for group in self._others if group.words and group.child.is_running]
        return [*ssh, *self._children]

    # What is said.

    def say(self, text: str) -> None:
        """One line for the user, on standard error."""
        self._note(text)
        if not self._options.is_silent:
            self._stderr.write(f"horovodrun: {text}\n".encode(errors="surrogateescape"))

    def say_verbose(self, text: str) -> None:
        """One line for those who asked for more."""
        if self._options.is_verbose:
            self.say(text)
        else:
            self._note(text)

    def _note(self, text: str) -> None:
        if self._options.note is not None:
            self._options.note(text)

    def _say_if(self, text: str) -> None:
        if text:
            self.say(text)

    # The loop.

    def run(self, handler: JobHandler) -> JobOutcome:
        """Serve ``handler`` until somebody has called ``end`` and all has ended; how it went."""
        self._handler = handler
        adopt_orphans()
        while self._ending is None or not all(group.is_gone for group in self.groups):
            for key, _ in self.selector.select(self._seconds_to_deadline(handler)):
                key.data()
            self._balance()
            if self._ending is None:
                self._look_for_an_end(handler)
            elif time.monotonic() >= self._ending.deadline:
                if self._ending.is_killing:
                    break
                self._kill("did not end within 5 s of SIGTERM")
        return self._finish(self._ending)

    def _seconds_to_deadline(self, handler: JobHandler) -> float | None:
        own = handler.deadline if self._ending is None else self._ending.deadline
        times = [t for t in (own, *(group.deadline for group in self.groups)) if t is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _balance(self) -> None:
        self._output.balance()
        for group in self.groups:
            group.balance()
        self._others = [group for group in self._others if not group.is_closed]
        self._say_if(self._logs.news())

    def _look_for_an_end(self, handler: JobHandler) -> None:
        if self._stdout.is_broken or self._stderr.is_broken:
            text = "horovodrun: nobody reads the output any more\n"
            self.end(JobOutcome(128 + signal.SIGPIPE, text))
        else:
            handler.turn()

    def _on_wakeup(self) -> None:
        for text in self.wakeups.take_notes():
            self.say(text)
        signals = self.wakeups.take_signals()
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

    # How it ends.

    @property
    def is_ending(self) -> bool:
        """Whether ``end`` has been called."""
        return self._ending is not None

    def end(self, outcome: JobOutcome) -> None:
        """End the job; what is left of it after a success may live on outside its groups.

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

    def _kill(self, reason: str) -> None:
        assert self._ending is not None
        late = [name for group in self.groups for name in group.late()]
        if late:
            self.say(f"killing {', '.join(late)}, or children of it, which {reason}")
        self._ending.is_killing = True
        self._ending.deadline = time.monotonic() + GRACE_S
        for group in self.groups:
            group.kill()

    def _finish(self, ending: _Ending) -> JobOutcome:
        # Signals act as usual again: only the console can still take long.
        self.wakeups.restore()
        self._output.drain()
        stuck = [name for group in self.groups for name in group.late()]
        if stuck:
            self.say(f"these do not end although they got SIGKILL: {', '.join(stuck)}")
        self._say_if(self._logs.news())
        self._say_if(self._logs.summary())
        self._say_if(self._options.parting_words(ending.outcome))
        if self._options.tells_outcome:
            self._stderr.write(ending.outcome.text.encode(errors="surrogateescape"))
        self._stdout.flush()
        self._stderr.flush()
        return ending.outcome

    def close(self) -> None:
        """Whatever happened: leave nothing behind. Quick after a complete ``run``."""
        self._reserve.release()
        if self._here is not None:
            self._here.kill_groups()
        for pid in self._children:
            signal_group(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for group in self._others:
            group.child.hang_up()
        deadline = time.monotonic() + _PATIENCE_S
        for group in self._others:
            group.child.close(deadline)
        self.watchdog.close()
