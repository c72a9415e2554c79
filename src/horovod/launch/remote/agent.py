"""The launcher's agent on another host: starts its workers, sends their output, ends them.

ssh starts it without arguments. The plan and all later orders come through standard input; reports
leave through standard output, in frames. When standard input ends, for whatever reason, all workers
end and then the agent. A detached agent keeps the workers for a while and serves the launcher that
comes back. An agent imports little, since a launcher waits for all its agents at once.

The launcher acknowledges output. The agent stops reading its workers while much of a stream is not
acknowledged. So a slow console makes the workers wait and never hides an exit.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from horovod.errors import InitError
from horovod.launch.model.host_plan import HostPlan, Rendezvous, WorkerSpec
from horovod.launch.remote.launcher_connection import LauncherConnection, OutputBuffer
from horovod.launch.wire.frames import MAGIC, Frame, Kind, encode, encode_json
from horovod.launch.wire.remote_call import ReceivedCall
from horovod.launch.workers.output import Output, Sink
from horovod.launch.workers.processes import Watchdog, adopt_orphans, reaped, take_stdin
from horovod.launch.workers.wakeups import Wakeups
from horovod.launch.workers.worker_group import (
    GRACE_S,
    LocalWorkerGroup,
    Trouble,
    Worker,
    WorkerGroup,
)
from horovod.rendezvous.base.records import Records
from horovod.rendezvous.store.hosted import find_store

_BLOCKED = (
    "TCP connections from there to the machine of horovodrun have to get through: is there a "
    "firewall? --network-interfaces names the interfaces to use"
)
_NO_ORDERS = (
    "horovod's agent: standard input has ended before a plan came; the program that connects the "
    "hosts must pass standard input on"
)


def main() -> NoReturn:
    """Serve the launcher at the other end of standard input and output until it is done."""
    forget_signal_settings()
    orders_fd, reports_fd = take_stdin(), os.dup(1)
    os.dup2(2, 1)  # no code prints into the stream of frames
    with Wakeups() as wakeups, selectors.DefaultSelector() as selector:
        agent = Agent(selector, wakeups)
        try:
            try:
                agent.attach(orders_fd, reports_fd)
            except PermissionError:  # a file or /dev/null, which a selector cannot wait for
                sys.exit(_NO_ORDERS)
            agent.run()
        finally:
            agent.close()
    sys.exit(0)


def forget_signal_settings() -> None:
    """Undo what an agent inherits from a parent that ignores or blocks the signals that end it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)


@dataclass(eq=False)
class _FrameSink:
    """One stream of one worker on its way to the launcher, which acknowledges it."""

    _agent: Agent
    _worker: int
    _stream: int

    @property
    def waiting_bytes(self) -> int:
        """See ``Sink``."""
        return self._agent.unacknowledged[self._stream]

    def feed(self, data: bytes) -> None:
        """See ``Sink``."""
        self._agent.send_output(self._worker, self._stream, data)

    def flush(self) -> None:
        """See ``Sink``; the launcher takes it when it can."""

    def close(self) -> None:
        """See ``Sink``."""
        self._agent.note_closed(self._worker, self._stream)


@dataclass(eq=False, repr=False)
class Agent:
    """Serves one launcher at a time."""

    _selector: selectors.BaseSelector
    _wakeups: Wakeups

    def __post_init__(self) -> None:
        selector = self._selector
        self.unacknowledged = [0, 0]  # bytes of output by stream
        self._connection = LauncherConnection(
            selector, self._on_frame, self._on_connection_end, self._on_altered
        )
        self._watchdog = Watchdog()
        self._output = Output(selector)
        self._group = LocalWorkerGroup(
            self._output, self._watchdog, sinks=self._sinks, listener=self
        )
        self._closed: set[tuple[int, int]] = set()  # streams of workers
        self._buffer = OutputBuffer()
        self._plan: HostPlan | None = None
        self._is_prepared = False  # the group, for the plan
        self._call: ReceivedCall | None = None
        self._kill_at: float | None = None
        self._give_up_at = float("inf")
        self._let_go_at: float | None = None  # unless a launcher connects
        self.is_ending = False
        self.has_given_up = False
        self._has_reported_end = False
        selector.register(self._wakeups, selectors.EVENT_READ, self._on_wakeup)

    def _sinks(self, worker: Worker) -> tuple[Sink, Sink]:
        return _FrameSink(self, worker.number, 0), _FrameSink(self, worker.number, 1)

    # Methods that other kinds of agents override.

    def say(self, text: str) -> None:
        """Print a line for the log of this host."""
        sys.stderr.write(f"{text}\n")

    def before_end(self) -> None:
        """Nothing is left to do; the launcher is told next."""

    def adapted(self, plan: HostPlan) -> HostPlan:
        """The launcher's plan for this host: with variables that its environment lacks."""
        return replace(plan, environment={**os.environ, **plan.environment})

    def note_exit(self, exit_code: int) -> None:
        """A worker has exited, and the launcher is told."""

    # Its work.

    def serve(self, timeout_s: float) -> None:
        """Serve until nothing is left to do; the first launcher has ``timeout_s`` to connect."""
        self._let_go_at = time.monotonic() + timeout_s
        try:
            self.run()
        finally:
            self.close()

    def attach(self, orders_fd: int, reports_fd: int, records: Records | None = None) -> None:
        """A launcher has connected, perhaps in place of another: tell it what it may not know.

        ``records``: see ``LauncherConnection.open``.

        Raises:
            PermissionError: see ``LauncherConnection.open``.
        """
        self._connection.open(orders_fd, reports_fd, records)
        self._let_go_at = None
        self._connection.send(MAGIC)
        self._connection.send(encode_json(Kind.HELLO, self._hello()))
        self.unacknowledged = [0, 0]
        for (worker, stream), data in self._buffer.take():
            if worker in self._group.workers:  # the launcher does not know others
                self.send_output(worker, stream, data)
        self._forget_closed()
        for worker, stream in sorted(self._closed):
            self._connection.send(encode(Kind.CLOSED, worker=worker, stream=stream))
        for known in self._group.workers.values():
            if known.exit_code is not None:
                self._connection.send(encode(Kind.EXITED, known.exit_code, worker=known.number))

    def run(self) -> None:
        """Serve until all workers have ended and the launcher knows, or has gone for good."""
        while not self._is_over():
            for key, _ in self._selector.select(self._seconds_to_deadline()):
                key.data()
            self._output.balance()
            self._group.balance()
            self._connection.balance()
            now = time.monotonic()
            if self._let_go_at is not None and now >= self._let_go_at:
                self.give_up("no horovodrun has come in time")
            if self._kill_at is not None and now >= self._kill_at:
                self._kill()

    def give_up(self, reason: str) -> None:
        """End all workers, since they have no launcher."""
        self._let_go_at = None
        if not self.is_ending:
            self.has_given_up = True
            self.say(f"{reason}; ending the {self._group.living} workers that are left")
            self._end(reaches_strays=True)

    def leave(self, reason: str) -> None:
        """Disconnect and end all workers; for the launcher the host is lost."""
        self._connection.close()
        self.give_up(reason)

    def send_output(self, worker: int, stream: int, data: bytes) -> None:
        """Send what a worker has written, or keep it while there is no launcher."""
        if self._connection.is_open:
            self.unacknowledged[stream] += len(data)
            self._connection.send(encode(Kind.OUTPUT, data, worker=worker, stream=stream))
        else:
            self._buffer.add((worker, stream), data)

    def note_closed(self, worker: int, stream: int) -> None:
        """A worker's stream has ended."""
        self._closed.add((worker, stream))
        self._connection.send(encode(Kind.CLOSED, worker=worker, stream=stream))

    def _forget_closed(self) -> None:
        """Drop the streams of workers that are forgotten."""
        workers = self._group.workers
        self._closed = {(number, stream) for number, stream in self._closed if number in workers}

    def close(self) -> None:
        """Leave no worker behind, whatever happened."""
        self._group.kill_groups()
        self._watchdog.close()

    def _hello(self) -> dict[str, Any]:
        workers = [
            {"number": worker.number, "rank_info": asdict(worker.rank_info), "pid": worker.pid}
            for worker in self._group.workers.values()
        ]
        return {
            # As sshd sees it; empty without sshd.
            "launcher_address": os.environ.get("SSH_CONNECTION", "").partition(" ")[0],
            "workers": workers,
            "dropped_lines": self._buffer.dropped_lines,
        }

    def _is_over(self) -> bool:
        if not self.is_ending or not (self._group.is_gone or time.monotonic() > self._give_up_at):
            return False
        if not self._has_reported_end:
            self._has_reported_end = True
            self._kill_at = None
            self._output.drain()
            self.before_end()
            self._connection.send_from(iter((encode(Kind.GONE),)))
        return not self._connection.is_open

    def _seconds_to_deadline(self) -> float | None:
        if self._has_reported_end:
            return None
        ending = self._give_up_at if self._kill_at is None else self._kill_at
        times = (ending, self._let_go_at, self._group.deadline)
        deadline = min(t for t in times if t is not None)
        return None if deadline == float("inf") else max(0.0, deadline - time.monotonic())

    def _on_connection_end(self) -> None:
        if self._plan is None and not self.is_ending:
            sys.stderr.write(f"{_NO_ORDERS}\n")
        reconnect_timeout_s = self._plan.reconnect_timeout_s if self._plan else 0.0
        self.unacknowledged = [0, 0]
        if self.is_ending or not reconnect_timeout_s or not self._group.workers:
            self._end(reaches_strays=True)
        else:
            self._let_go_at = time.monotonic() + reconnect_timeout_s
            self.say(f"horovodrun has gone; its workers wait for it for {reconnect_timeout_s:g} s")

    def _on_altered(self, reason: str) -> None:
        """Orders cannot be trusted any more: tell the launcher why, and end."""
        hostname = self._plan.hostname if self._plan else os.uname().nodename
        text = f"{hostname}: the orders of horovodrun were altered: {reason}"
        self._report_trouble(Trouble(1, text))
        self.give_up(text)

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.PLAN:
            if not self._is_prepared:
                self._plan = self.adapted(HostPlan.read(frame.fields))
                self._call = ReceivedCall() if self._plan.has_call else None
        elif frame.kind == Kind.CALL and self._call:
            self._call.add(frame.payload)
        elif frame.kind == Kind.START and self._plan:
            self._start(self._plan, WorkerSpec.read(frame.fields))
        elif frame.kind == Kind.TAKEN:
            if not 0 <= frame.number <= self.unacknowledged[frame.stream]:
                expected = f"at most {self.unacknowledged[frame.stream]}"
                raise frame.error("bytes", str(frame.number), expected)
            self.unacknowledged[frame.stream] -= frame.number
        elif frame.kind == Kind.END:
            self._end(reaches_strays=bool(frame.stream))
        elif frame.kind == Kind.KILL:
            self._kill()
        elif frame.kind == Kind.END_WORKER:
            self._group.end_worker(frame.worker)
        elif frame.kind == Kind.KILL_WORKER:
            self._group.kill_worker(frame.worker)
        elif frame.kind == Kind.FORGET:
            self._group.forget(frame.worker)
            self._forget_closed()

    def _start(self, plan: HostPlan, spec: WorkerSpec) -> None:
        if not self.is_ending and (self._is_prepared or self._prepare(plan)):
            self._group.start_worker(spec)
            adopt_orphans()

    def _prepare(self, plan: HostPlan) -> bool:
        """Prepare for the first worker. Returns whether workers can be started."""
        if self._call:
            self._call.complete()
        # The program is searched for along the launcher's PATH.
        os.environ["PATH"] = plan.environment.get("PATH", os.defpath)
        try:
            store = find_store(plan.stores, plan.secret, plan.store_timeout_s)
        except InitError as error:
            self._report_trouble(Trouble(1, f"{plan.hostname}: {error.reason}\n{_BLOCKED}"))
            return False
        store.close()
        self._group.prepare(plan, Rendezvous(*store.address, plan.secret), files=self._call)
        self._is_prepared = True
        return True

    # See ``StartListener``.

    def started(self, worker: Worker) -> None:
        self._connection.send(encode(Kind.STARTED, worker.pid, worker=worker.number))

    def troubled(self, group: WorkerGroup, trouble: Trouble) -> None:
        if self._call and trouble.number is not None:
            self._call.drop(trouble.number)
        self._report_trouble(trouble)

    def _report_trouble(self, trouble: Trouble) -> None:
        self._connection.send(encode(Kind.TROUBLE, trouble.to_bytes()))

    def _on_wakeup(self) -> None:
        signals = self._wakeups.take()
        for pid, exit_code in reaped():
            if pid == self._watchdog.pid:
                self._watchdog.was_reaped()
            elif worker := self._group.note_exit(pid, exit_code):
                self._report_exit(worker.number, exit_code)
        self._group.note_ended_groups()
        if set(signals) - {signal.SIGCHLD}:
            # A user of this host ends the agent; the launcher is told of its workers' ends.
            self._end(reaches_strays=True)

    def _report_exit(self, worker: int, exit_code: int) -> None:
        if self._call:
            self._connection.send_from(self._call.answer_of(worker, exit_code))
        else:
            self._connection.send(encode(Kind.EXITED, exit_code, worker=worker))
        self.note_exit(exit_code)

    def _end(self, *, reaches_strays: bool) -> None:
        self.is_ending = True
        self._kill_at = time.monotonic() + GRACE_S
        self._group.end(reaches_strays=reaches_strays)

    def _kill(self) -> None:
        self.is_ending = True
        self._kill_at = None
        self._give_up_at = time.monotonic() + GRACE_S
        self._group.kill()


if __name__ == "__main__":
    main()
