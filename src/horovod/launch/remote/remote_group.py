"""The workers of another host as the launcher sees them, through a connection with an agent.

The connection is ssh, or TCP to an embedded agent. The agent starts, watches and ends the workers;
frames go in both directions. When the connection ends, for whatever reason, the agent finds its
standard input closed and ends the workers by itself. A group can be connected, dismissed or lost at
any time. The listener decides what that means for the job.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Protocol

from horovod.core.base.checked import MOST_PID, BadMessageError, Fields, printable
from horovod.core.base.rank_info import read_rank_info
from horovod.launch.calls.call import WorkerFiles
from horovod.launch.model.host_plan import HostPlan, WorkerSpec
from horovod.launch.model.job_plan import EmbeddedAgentAddress
from horovod.launch.remote.connections import EmbeddedAgentLink, SshChild
from horovod.launch.wire.frames import MAGIC, Frame, FrameError, FrameReader, Kind, encode
from horovod.launch.wire.remote_call import RemoteAnswers, call_frames
from horovod.launch.workers.output import Console, Sink
from horovod.launch.workers.processes import Watchdog
from horovod.launch.workers.worker_group import GRACE_S, StartListener, Trouble, Worker

# Login scripts may print so much before the agent begins. The end is shown if no agent does.
_MOST_PRELUDE_BYTES = 1024 * 1024
_SHOWN_PRELUDE_BYTES = 2048
# Output is acknowledged in pieces of this size, far below what makes an agent pause.
_TAKEN_BYTES = 64 * 1024
_LOW_WATER_BYTES = 256 * 1024
# An ssh server that is about to start refuses at first. A busy gateway drops some connections.
_MOST_ATTEMPTS = 5
_MOST_TCP_ATTEMPTS = 120
_PAUSE_S = 0.5
_SSH_FAILED = 255
_FINAL_ERRORS = ("Permission denied", "Host key verification failed")
# An agent that was asked to end kills after the first and gives up after the second.
_MOST_END_S = 2 * GRACE_S + 2.0


class Listener(StartListener, Protocol):
    """Gets what happens to a remote group, in the launcher's loop."""

    def connected(self, group: RemoteWorkerGroup) -> None:
        """The agent has answered and waits for a plan."""

    def ended(self, workers: Sequence[Worker]) -> None:
        """Workers have exited, seen at one moment; their answers, if any, have arrived."""

    def refused(self, group: RemoteWorkerGroup) -> None:
        """There was no connection; the group tries again."""

    def lost(self, group: RemoteWorkerGroup) -> None:
        """The connection has ended, or could not even begin; ``group.problem`` says how."""


@dataclass(eq=False, repr=False)
class RemoteWorkerGroup:
    """See ``WorkerGroup``. ``way``: the command that starts the agent, or its address."""

    hostname: str
    _way: Sequence[str] | EmbeddedAgentAddress
    _: KW_ONLY
    selector: selectors.BaseSelector
    watchdog: Watchdog
    consoles: tuple[Console, Console]
    sinks: Callable[[Worker], tuple[Sink, Sink]]
    call: WorkerFiles | None
    listener: Listener

    def __post_init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self.command = () if isinstance(self._way, EmbeddedAgentAddress) else tuple(self._way)
        self.problem = ""
        self.launcher_address = ""  # as the host sees it, if it knows
        self.dropped_lines = 0  # of output, while no launcher was connected
        self.is_connected = False
        self.is_gone = False
        self.retry_at: float | None = None
        self._attempts = 0
        self._environ: Mapping[str, str] = {}
        self.child = self._new_child()
        self._refusal = ""
        self._has_plan = False
        self._awaited: dict[int, WorkerSpec] = {}  # requested, and neither started nor troubled
        self._sinks: dict[int, dict[int, Sink]] = {}  # by worker and stream, until the stream ends
        self._forgotten: set[int] = set()
        self._is_asked = False  # to end
        self._give_up_at: float | None = None  # waiting for the agent's end
        self._answers = RemoteAnswers(self.call)
        self._reader = FrameReader()
        self._prelude = b""
        self._unacknowledged = [0, 0]  # bytes of output by stream

    @property
    def is_started(self) -> bool:
        """Whether there is a plan, and all requested workers have started."""
        return self._has_plan and not self._awaited

    @property
    def is_closed(self) -> bool:
        """Whether nothing of it is left on this machine either, so that nothing is to be closed."""
        return self.is_gone and not self.child.is_running

    @property
    def ranks(self) -> list[int]:
        """The ranks of the host's workers, started or not, in order."""
        infos = [worker.rank_info for worker in self.workers.values()]
        infos += [spec.rank_info for spec in self._awaited.values()]
        return sorted(info.rank for info in infos)

    @property
    def living(self) -> int:
        """See ``WorkerGroup``."""
        return 0 if self.is_gone else len(self._living())

    @property
    def last_lines(self) -> str:
        """The output before the agent's frames, and the end of standard error."""
        prelude = self._prelude[-_SHOWN_PRELUDE_BYTES:].decode(errors="backslashreplace")
        return f"{prelude}\n{self.child.last_lines or self._refusal}".strip()

    def connect(self, environ: Mapping[str, str], *, has_workers: bool = False) -> None:
        """Connect; ``lost`` follows at once if that is impossible.

        ``has_workers``: the host may have workers, which ``connected`` will show. They belong to
        this group then, also those that have ended.
        """
        self._environ, self._has_plan = environ, self._has_plan or has_workers
        self._attempts += 1
        try:
            self.child.start(environ)
        except OSError as error:
            what = f"run {self.command[0]}" if self.command else "connect"
            self._be_lost(f"cannot {what}: {error.strerror}")

    @property
    def deadline(self) -> float | None:
        """See ``WorkerGroup``."""
        return min((t for t in (self.retry_at, self._give_up_at) if t is not None), default=None)

    def prepare(self, plan: HostPlan) -> None:
        """Send what all workers have in common, once, when the agent has answered."""
        self._has_plan = True
        self._send(encode(Kind.PLAN, self.child.sealed(plan).to_bytes()))
        self._send_in_order(call_frames(self.call))

    def start_worker(self, spec: WorkerSpec) -> None:
        """See ``WorkerGroup``; needs ``prepare`` before."""
        self._awaited[spec.number] = spec
        self._send_in_order(iter((encode(Kind.START, spec.to_bytes()),)))

    def end_worker(self, number: int) -> None:
        """See ``WorkerGroup``."""
        self._order(Kind.END_WORKER, number)

    def kill_worker(self, number: int) -> None:
        """See ``WorkerGroup``."""
        self._order(Kind.KILL_WORKER, number)

    def forget(self, number: int) -> None:
        """See ``WorkerGroup``."""
        if number in self.workers:
            self._forgotten.add(number)
            self._order(Kind.FORGET, number)
            self._let_go(number)

    def dismiss(self) -> None:
        """End the host's workers, then the agent and the connection; see ``is_closed``.

        Never waits. Events of workers come until the end. A connection that ends early is ``lost``.
        """
        if self._give_up_at is None and not self.is_gone:
            self._give_up_at = time.monotonic() + _MOST_END_S
            self.end(reaches_strays=True)

    def late(self) -> list[str]:
        """See ``WorkerGroup``."""
        if self.is_gone:
            return []
        return [worker.name for worker in self._living()] or [f"the processes on {self.hostname}"]

    def end(self, *, reaches_strays: bool) -> None:
        """See ``WorkerGroup``. Without workers it ends at once."""
        self._is_asked = True
        if self._has_plan:
            self._send(encode(Kind.END, stream=int(reaches_strays)))
        else:
            self.is_gone, self.retry_at = True, None
            self.child.abort()

    def kill(self) -> None:
        """See ``WorkerGroup``."""
        self._send(encode(Kind.KILL))

    def balance(self) -> None:
        """See ``WorkerGroup``."""
        if self.retry_at is not None and time.monotonic() >= self.retry_at:
            self.retry_at = None
            self._prelude, self._refusal = b"", self.last_lines
            self.child = self._new_child()
            self.connect(self._environ)
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            self._give_up_at = None
            self.child.abort()
        for stream, console in enumerate(self.consoles):
            count = self._unacknowledged[stream]
            if count >= _TAKEN_BYTES and console.waiting_bytes < _LOW_WATER_BYTES:
                self._send(encode(Kind.TAKEN, count, stream=stream))
                self._unacknowledged[stream] = 0
        if self.child.writer is not None:
            self.child.writer.refill()

    def note_exit(self, pid: int, exit_code: int) -> bool:
        """Whether this reaped process was the connection's."""
        if pid != self.child.pid or not self.child.is_running:
            return False
        self.child.note_exit(exit_code)
        self._note_end()
        return True

    def _note_end(self) -> None:
        """The connection has ended."""
        if self._may_try_again():
            self.retry_at = time.monotonic() + _PAUSE_S
            self.listener.refused(self)
        elif not self.is_gone:
            self._be_lost(self.child.how_it_ended)

    def _may_try_again(self) -> bool:
        if self.is_gone or self.is_connected:
            return False
        if isinstance(self.child, EmbeddedAgentLink):
            return self.child.may_retry and self._attempts < _MOST_TCP_ATTEMPTS
        if self.child.exit_code != _SSH_FAILED:
            return False
        is_final = any(text in self.last_lines for text in _FINAL_ERRORS)
        return self._attempts < _MOST_ATTEMPTS and not is_final

    def _new_child(self) -> SshChild | EmbeddedAgentLink:
        if isinstance(self._way, EmbeddedAgentAddress):
            return EmbeddedAgentLink(self.selector, self._on_data, self._way, self._note_end)
        return SshChild(self.selector, self._on_data, self.command, self.watchdog)

    def _be_lost(self, problem: str) -> None:
        self.problem, self.is_gone, self._give_up_at = problem, True, None
        for sinks in self._sinks.values():
            for sink in sinks.values():
                sink.close()
        self._sinks.clear()
        self.listener.lost(self)

    def _living(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.exit_code is None]

    def _order(self, kind: Kind, number: int) -> None:
        self._send_in_order(iter((encode(kind, worker=number),)))

    def _send_in_order(self, source: Iterator[bytes]) -> None:
        """Send after the worker's START, which a call of gigabytes may delay."""
        if self.child.writer is not None:
            self.child.writer.send_from(source)

    def _send(self, frame: bytes) -> None:
        if self.child.writer is not None:
            self.child.writer.send(frame)

    def _on_data(self, data: bytes) -> None:
        frames = self._frames_of(data)
        while True:
            try:
                frame = next(frames, None)
                news = self._on_frame(frame) if frame is not None else None
            except (FrameError, LookupError, TypeError, ValueError) as error:
                self.child.abort()
                self._be_lost(f"sent what no agent of this version sends: {error}")
                return
            if news is not None:
                news()  # outside of ``try``: an error of the listener is not the agent's
            if frame is None:
                return

    def _frames_of(self, data: bytes) -> Iterator[Frame]:
        if not self.is_connected:
            self._prelude += data
            before, magic, data = self._prelude.partition(MAGIC)
            if not magic and len(before) > _MOST_PRELUDE_BYTES:
                raise FrameError(f"{len(before)} bytes of something else")
            if magic:
                self.is_connected, self._prelude = True, b""
        yield from self._reader.feed(data)

    def _on_frame(self, frame: Frame) -> Callable[[], None] | None:
        """The call of the listener that follows, if any."""
        kind, number = frame.kind, frame.worker
        if kind == Kind.OUTPUT:
            self._unacknowledged[frame.stream] += len(frame.payload)
            self._sinks[number][frame.stream].feed(frame.payload)
        elif kind == Kind.CLOSED:
            self._on_closed(number, frame.stream)
        elif kind == Kind.STARTED:
            return self._on_started(number, frame.number)
        elif kind == Kind.ANSWER:
            self._answers.add(self.workers[number].number, frame.payload)
        elif kind == Kind.EXITED:
            return self._on_exited(number, frame.number)
        elif kind == Kind.TROUBLE:
            return self._on_trouble(Trouble.read(frame.fields))
        elif kind == Kind.GONE:
            return self._on_gone()
        elif kind == Kind.HELLO:
            self._on_hello(frame.fields)
            return partial(self.listener.connected, self)
        return None

    def _on_hello(self, fields: Fields) -> None:
        self.launcher_address = printable(fields.text("launcher_address", 255))
        self.dropped_lines = fields.integer("dropped_lines")
        workers = fields.each("workers", _worker_of)
        fields.close()
        for worker in workers:
            self._add(worker)

    def _on_started(self, number: int, pid: int) -> Callable[[], None]:
        if not 0 < pid <= MOST_PID:
            raise BadMessageError("STARTED", "pid", str(pid), f"1 to {MOST_PID}")
        worker = Worker(number, self._awaited.pop(number).rank_info, pid)
        self._add(worker)
        return partial(self.listener.started, worker)

    def _add(self, worker: Worker) -> None:
        self.workers[worker.number] = worker
        self._sinks[worker.number] = dict(enumerate(self.sinks(worker)))

    def _on_trouble(self, trouble: Trouble) -> Callable[[], None]:
        if trouble.number is None:
            self._awaited.clear()
        else:
            del self._awaited[trouble.number]
        return partial(self.listener.troubled, self, trouble)

    def _on_closed(self, number: int, stream: int) -> None:
        self._sinks[number].pop(stream).close()
        if not self._sinks[number]:
            del self._sinks[number]
        self._let_go(number)

    def _on_exited(self, number: int, exit_code: int) -> Callable[[], None]:
        worker = self.workers[number]
        if not -255 <= exit_code <= 255:
            raise BadMessageError("EXITED", "exit code", str(exit_code), "-255 to 255")
        self._answers.complete(number)
        worker.exit_code = exit_code
        self._let_go(number)
        return partial(self.listener.ended, [worker])

    def _on_gone(self) -> Callable[[], None] | None:
        self.is_gone = self.is_gone or self._is_asked
        if self._give_up_at is not None or not self._is_asked:
            self.child.hang_up()
        # Without an order to end, the agent was ended on its host.
        return None if self._is_asked else partial(self._be_lost, "its agent has ended")

    def _let_go(self, number: int) -> None:
        """Drop a worker that is forgotten, has exited and whose output has ended."""
        is_over = number in self._forgotten and number not in self._sinks
        if is_over and self.workers[number].exit_code is not None:
            self._forgotten.discard(number)
            del self.workers[number]


def _worker_of(fields: Fields) -> Worker:
    number, info = fields.integer("number", 0, 2**32 - 1), read_rank_info(fields)
    return Worker(number, info, fields.integer("pid", 1, MOST_PID))
