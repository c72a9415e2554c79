"""The workers of another host as the launcher sees them: ssh, with an agent at its other end.

The agent starts, watches and ends them; frames go to and fro (``frames.py``). When the connection
ends, for whatever reason, the agent finds its standard input closed and ends the workers by itself.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from horovod.launch.crew import Worker
from horovod.launch.frames import MAGIC, Frame, FrameError, FrameReader, Kind, encode, encode_json
from horovod.launch.host_plan import HostPlan, fields_of
from horovod.launch.hosts import Slot
from horovod.launch.output import Console, Sink
from horovod.launch.remote_call import RemoteAnswers, call_frames
from horovod.launch.ssh_child import SshChild
from horovod.launch.watchdog import Watchdog

if TYPE_CHECKING:
    from horovod.launch.call import CallFiles

__all__ = ["Listener", "RemoteCrew"]

# What login scripts may print before the agent begins; its end is shown if no agent does.
_MOST_PRELUDE_BYTES = 1024 * 1024
_SHOWN_PRELUDE_BYTES = 2048
# Output is acknowledged in pieces of this size, far below what makes an agent pause.
_TAKEN_BYTES = 64 * 1024
_LOW_WATER_BYTES = 256 * 1024
# A machine or a pod whose ssh server is about to start refuses at first; a gateway that many
# connections pass through drops some of them.
_MOST_ATTEMPTS = 5
_PAUSE_S = 0.5
_SSH_FAILED = 255
_HOPELESS = ("Permission denied", "Host key verification failed")


class Listener(Protocol):
    """Whom a remote crew tells what happens, in the launcher's loop."""

    def greeted(self, crew: RemoteCrew) -> None:
        """The agent is there and waits for a plan."""

    def started(self, worker: Worker) -> None:
        """A worker has been started."""

    def ended(self, worker: Worker) -> None:
        """A worker has exited; its answer, if there is one, has arrived."""

    def troubled(self, status: int, text: str) -> None:
        """The host cannot start its workers; ``status`` is for the launcher's exit."""

    def refused(self, crew: RemoteCrew) -> None:
        """There was no connection; it is tried again."""

    def lost(self, crew: RemoteCrew) -> None:
        """The connection has ended, or could not even begin; ``crew.problem`` says how."""


class RemoteCrew:
    """See ``Crew``. ``words`` start the agent; ``slots`` are all places on its host."""

    def __init__(
        self,
        slots: Sequence[Slot],
        words: Sequence[str],
        *,
        selector: selectors.BaseSelector,
        watchdog: Watchdog,
        consoles: tuple[Console, Console],
        sinks: Callable[[int], tuple[Sink, Sink]],
        call: CallFiles | None,
        listener: Listener,
    ) -> None:
        self.hostname = slots[0].hostname
        self.slots = {slot.rank: slot for slot in slots}
        self.workers: list[Worker] = []
        self.words = tuple(words)
        self.problem = ""
        self.launcher_address = ""  # where the host sees the launcher come from, if it knows
        self.is_greeted = False
        self.is_gone = False
        self.retry_at: float | None = None
        self._attempts = 0
        self._environ: Mapping[str, str] = {}
        self._selector = selector
        self._watchdog = watchdog
        self.child = self._new_child()
        self._refusal = ""
        self._has_plan = False
        self._consoles = consoles
        self._make_sinks = sinks
        self._sinks: dict[int, tuple[Sink, Sink]] = {}
        self._call = call
        self._answers = RemoteAnswers(call)
        self._listener = listener
        self._reader = FrameReader()
        self._prelude = b""
        self._untaken = [0, 0]  # bytes of output by stream

    @property
    def is_started(self) -> bool:
        """Whether all workers have been."""
        return len(self.workers) == len(self.slots)

    @property
    def living(self) -> int:
        """See ``Crew``."""
        return 0 if self.is_gone else sum(1 for w in self.workers if w.exit_code is None)

    @property
    def last_lines(self) -> str:
        """What was written in place of an agent's frames, and the end of standard error."""
        prelude = self._prelude[-_SHOWN_PRELUDE_BYTES:].decode(errors="backslashreplace")
        return f"{prelude}\n{self.child.last_lines or self._refusal}".strip()

    def connect(self, environ: Mapping[str, str]) -> None:
        """Start ssh; ``lost`` follows at once if that cannot be."""
        self._environ = environ
        self._attempts += 1
        try:
            self.child.start(environ)
        except OSError as error:
            self._be_lost(f"cannot run {self.words[0]}: {error.strerror}")

    def start(self, plan: HostPlan) -> None:
        """Let the agent start the workers; ``started`` follows for each of them."""
        self._has_plan = True
        self._send(encode_json(Kind.PLAN, fields_of(plan)))
        if self.child.writer is not None:
            self.child.writer.send_from(call_frames(self._call))

    def late(self) -> list[str]:
        """See ``Crew``."""
        if self.is_gone:
            return []
        living = [worker.name for worker in self.workers if worker.exit_code is None]
        return living or [f"the processes on {self.hostname}"]

    def end(self, *, reaches_strays: bool) -> None:
        """See ``Crew``. Without workers it ends at once."""
        if self._has_plan:
            self._send(encode(Kind.END, stream=int(reaches_strays)))
        else:
            self.is_gone, self.retry_at = True, None
            self.child.abort()

    def kill(self) -> None:
        """See ``Crew``."""
        self._send(encode(Kind.KILL))

    def balance(self) -> None:
        """Do and send what is due; to be called in every turn of the loop."""
        if self.retry_at is not None and time.monotonic() >= self.retry_at:
            self.retry_at = None
            self._prelude, self._refusal = b"", self.last_lines
            self.child = self._new_child()
            self.connect(self._environ)
        for stream, console in enumerate(self._consoles):
            if self._untaken[stream] >= _TAKEN_BYTES and console.waiting_bytes < _LOW_WATER_BYTES:
                self._send(encode(Kind.TAKEN, self._untaken[stream], stream=stream))
                self._untaken[stream] = 0
        if self.child.writer is not None:
            self.child.writer.refill()

    def note_exit(self, pid: int, exit_code: int) -> bool:
        """Whether this reaped process was the one that is connected with the host."""
        if pid != self.child.pid or not self.child.is_running:
            return False
        self.child.note_exit(exit_code)
        if self._may_try_again():
            self.retry_at = time.monotonic() + _PAUSE_S
            self._listener.refused(self)
        elif not self.is_gone:
            self._be_lost(self.child.how_it_ended)
        return True

    def _may_try_again(self) -> bool:
        if self.is_gone or self.is_greeted or self.child.exit_code != _SSH_FAILED:
            return False
        is_hopeless = any(text in self.last_lines for text in _HOPELESS)
        return self._attempts < _MOST_ATTEMPTS and not is_hopeless

    def _new_child(self) -> SshChild:
        return SshChild(self.words, self._selector, self._watchdog, self._on_data)

    def _be_lost(self, problem: str) -> None:
        self.problem, self.is_gone = problem, True
        for sinks in self._sinks.values():
            for sink in sinks:
                sink.close()
        self._listener.lost(self)

    def _send(self, frame: bytes) -> None:
        if self.child.writer is not None:
            self.child.writer.send(frame)

    def _on_data(self, data: bytes) -> None:
        try:
            if self.is_greeted or (data := self._after_prelude(data)):
                for frame in self._reader.feed(data):
                    self._on_frame(frame)
        except (FrameError, LookupError, TypeError, ValueError) as error:
            self.child.abort()
            self._be_lost(f"sent what no agent of this version sends: {error}")

    def _after_prelude(self, data: bytes) -> bytes:
        self._prelude += data
        before, magic, after = self._prelude.partition(MAGIC)
        if not magic and len(before) > _MOST_PRELUDE_BYTES:
            raise FrameError(f"{len(before)} bytes of something else")
        if magic:
            self.is_greeted, self._prelude = True, b""
        return after

    def _on_frame(self, frame: Frame) -> None:
        kind, rank = frame.kind, frame.rank
        if kind == Kind.OUTPUT:
            self._untaken[frame.stream] += len(frame.payload)
            self._sinks_of(rank)[frame.stream].feed(frame.payload)
        elif kind == Kind.CLOSED:
            self._sinks_of(rank)[frame.stream].close()
        elif kind == Kind.STARTED:
            self.workers.append(Worker(self.slots[rank], frame.number))
            self._listener.started(self.workers[-1])
        elif kind == Kind.ANSWER:
            self._answers.add(self.slots[rank].rank, frame.payload)
        elif kind == Kind.EXITED:
            self._on_exited(rank, frame.number)
        elif kind == Kind.TROUBLE:
            self._listener.troubled(int(frame.fields["status"]), str(frame.fields["text"]))
        elif kind == Kind.GONE:
            self.is_gone = True
        elif kind == Kind.HELLO:
            self.launcher_address = str(frame.fields["launcher_address"])
            self._listener.greeted(self)

    def _on_exited(self, rank: int, exit_code: int) -> None:
        self._answers.complete(rank)
        for worker in self.workers:
            if worker.slot.rank == rank:
                worker.exit_code = exit_code
                self._listener.ended(worker)

    def _sinks_of(self, rank: int) -> tuple[Sink, Sink]:
        if rank not in self._sinks:
            self._sinks[rank] = self._make_sinks(self.slots[rank].rank)
        return self._sinks[rank]
