"""Runs the experiments of a plan, several at a time, line after line, until all have ended.

Every line is a job with a launcher process of its own, so a barrier is between lines. This process
starts the launchers and forwards their output, in one selector on the main thread. A failed
experiment leaves the others running; a signal ends all: each launcher gets SIGTERM and ends its
workers.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from horovod.core.base.on_error import on_error
from horovod.launch.calls.call import memory_file
from horovod.launch.experiment.plan import Experiment, ExperimentPlan
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.launch.run.supervision import read_outcome, send_plan, start_launcher
from horovod.launch.workers.output import Console, Output, consoles
from horovod.launch.workers.processes import describe_exit, open_standard_files
from horovod.launch.workers.wakeups import Wakeups
from horovod.launch.workers.worker_group import GRACE_S

# A launcher gives its workers two times GRACE_S; one that takes longer has hung.
_END_S = 3 * GRACE_S
_SHOWN_LENGTH = 100


class State(Enum):
    """The state of an experiment; the names are RiseML's."""

    PENDING = "Pending"
    RUNNING = "Running"
    FINISHED = "Finished"
    FAILED = "Failed"
    KILLED = "Killed"


@dataclass(eq=False)
class Record:
    """An experiment and its state; times are those of the monotonic clock."""

    experiment: Experiment
    state: State = State.PENDING
    line: int = 0
    share: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    reason: str = ""

    @property
    def title(self) -> str:
        """The name and the values of the parameters."""
        values = (f"{name}={value}" for name, value in self.experiment.values.items())
        return " ".join((self.experiment.name, *values))

    @property
    def line_title(self) -> str:
        """The number and the beginning of the running line."""
        text = " ".join(self.experiment.lines[self.line].split())
        shown = text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."
        return f"line {self.line + 1} of {len(self.experiment.lines)}: {shown}"


def run_plan(
    plan: ExperimentPlan,
    options: JobPlan,
    environ: Mapping[str, str],
    prepare: Callable[[Experiment], None],
) -> tuple[int, list[Record]]:
    """Run all experiments of ``plan``, each after ``prepare``; returns exit status and records.

    The status is 0 if all have finished, 1 if one has not, 128 + signal after a signal. Blocks
    until the last one has ended; then none of their processes is left. Main thread only, whose
    signals it takes over meanwhile.
    """
    open_standard_files()
    with Wakeups() as wakeups, selectors.DefaultSelector() as selector:
        runner = _ExperimentRunner(plan, options, environ, prepare, selector, wakeups)
        try:
            status = runner.run()
        finally:
            runner.kill_all()
    return status, runner.records


class _LineJob:
    """A running job of one line: its launcher, with all processes of the job.

    Its output goes to ``consoles`` with ``prefix`` in front of each line.
    """

    def __init__(
        self,
        plan: JobPlan,
        environ: Mapping[str, str],
        selector: selectors.BaseSelector,
        prefix: str,
        consoles: tuple[Console, Console],
    ) -> None:
        """Start it without waiting. Raises OSError if no process can be started."""
        self._report = memory_file()
        self.output = Output(selector)
        streams = (subprocess.PIPE, subprocess.PIPE)
        with on_error(self._report.close):
            self.process = start_launcher(sys.executable, (), self._report, None, environ, streams)
        ends = (self.process.stdout, self.process.stderr)
        for stream, console in zip(ends, consoles, strict=True):
            assert stream is not None
            with stream:
                self.output.add(os.dup(stream.fileno()), prefix, console)
        send_plan(self.process, plan, self._report)

    def kill(self) -> None:
        """Kill the launcher; its watchdog ends the processes."""
        self.process.kill()
        self.process.wait()

    def finish(self) -> JobOutcome:
        """Forward the rest of the output and return the outcome; only after the job has ended."""
        self.output.drain()
        assert self.process.stdin is not None
        self.process.stdin.close()
        with self._report:
            return read_outcome(self._report, self.process.wait())


@dataclass(eq=False, repr=False)
class _ExperimentRunner:
    _plan: ExperimentPlan
    _options: JobPlan
    _environ: Mapping[str, str]
    _prepare: Callable[[Experiment], None]
    _selector: selectors.BaseSelector
    _wakeups: Wakeups

    def __post_init__(self) -> None:
        self._consoles = consoles(self._selector)
        self.records = [Record(experiment) for experiment in self._plan.experiments]
        self._waiting = deque(self.records)
        self._free = list(range(len(self._plan.shares)))
        self._running: dict[Record, _LineJob] = {}
        self._status = 0  # 128 + the signal that has ended all
        self._deadline: float | None = None
        self._selector.register(self._wakeups, selectors.EVENT_READ, self._on_wakeup)

    def run(self) -> int:
        """Run until all have ended; returns the exit status."""
        self._start_waiting()
        while self._running:
            now, deadline = time.monotonic(), self._deadline
            for key, _ in self._selector.select(deadline and max(0.0, deadline - now)):
                key.data()
            for job in self._running.values():
                job.output.balance()
            if not self._status and any(console.is_broken for console in self._consoles):
                self._end(signal.SIGPIPE)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._say("sending SIGKILL to the launchers that have not ended")
                self._deadline = None
                self.kill_all()
        self._wakeups.restore()
        for console in self._consoles:
            console.flush()
        has_finished = all(record.state is State.FINISHED for record in self.records)
        return self._status or (0 if has_finished else 1)

    def kill_all(self) -> None:
        """Kill the launchers that are left; their watchdogs end the workers."""
        for job in self._running.values():
            job.kill()

    def _start_waiting(self) -> None:
        while self._waiting and self._free:
            record = self._waiting.popleft()
            record.share = self._free.pop(0)
            record.started_s = time.monotonic()
            record.state = State.RUNNING
            self._say(f"{record.title} --> Running ({self._progress()})")
            try:
                self._prepare(record.experiment)
            except OSError as error:
                self._note_end(record, State.FAILED, f"no folder for its output: {error.strerror}")
                continue
            self._start_line(record)

    def _start_line(self, record: Record) -> None:
        name = record.experiment.name
        self._say(f"{name} {record.line_title}")
        plan = self._plan.job(record.experiment, record.line, record.share, self._options)
        try:
            self._running[record] = _LineJob(
                plan, self._environ, self._selector, f"[{name}]", self._consoles
            )
        except OSError as error:
            self._note_end(record, State.FAILED, f"cannot be started: {error.strerror}")

    def _on_wakeup(self) -> None:
        signals = self._wakeups.take()
        for signum in signals:
            if signum != signal.SIGCHLD:
                self._end(signum)
        for record, job in list(self._running.items()):
            if job.process.poll() is not None:
                del self._running[record]
                self._go_on(record, job.finish())
        self._start_waiting()

    def _go_on(self, record: Record, outcome: JobOutcome) -> None:
        is_last = record.line + 1 == len(record.experiment.lines)
        if outcome.status == 0 and is_last:
            self._note_end(record, State.FINISHED, "")
        elif outcome.status == 0 and not self._status:
            record.line += 1
            self._start_line(record)
        elif self._status or outcome.status > 128:
            self._note_end(record, State.KILLED, f"in line {record.line + 1}")
        else:
            self._note_end(record, State.FAILED, f"line {record.line + 1}, {_cause(outcome)}")

    def _note_end(self, record: Record, state: State, reason: str) -> None:
        record.state, record.reason = state, reason
        record.ended_s = time.monotonic()
        self._free.append(record.share)
        detail = f": {reason}" if reason else ""
        self._say(f"{record.title} --> {state.value}{detail} ({self._progress()})")

    def _end(self, signum: int) -> None:
        """End all; a second signal makes the launchers kill their workers."""
        if not self._status:
            self._status = 128 + signum
            name = signal.Signals(signum).name
            again = "; once more kills at once" if signum == signal.SIGINT else ""
            self._say(f"{name}: ending {len(self._running)} experiment(s){again}")
            for record in self._waiting:
                record.state, record.reason = State.KILLED, "before its first line"
            self._waiting.clear()
        self._deadline = time.monotonic() + _END_S
        for job in self._running.values():
            job.process.terminate()

    def _progress(self) -> str:
        over = sum(r.state not in (State.PENDING, State.RUNNING) for r in self.records)
        running = sum(record.state is State.RUNNING for record in self.records)
        return f"{over} of {len(self.records)} ended, {running} running"

    def _say(self, text: str) -> None:
        self._consoles[1].write(f"horovodrun: {text}\n".encode(errors="surrogateescape"))


def _cause(outcome: JobOutcome) -> str:
    if outcome.rank_info is not None:
        return f"rank {outcome.rank_info.rank} {describe_exit(outcome.exit_code)}"
    return " ".join(outcome.text.split())
