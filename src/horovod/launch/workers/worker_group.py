"""The workers of one host: started, watched, ended, with all that they have started.

``WorkerGroup`` is what a job needs of a host. ``LocalWorkerGroup`` runs on the host itself: in the
launcher, and in a launcher's agent on another host. Workers are known by number, and may start and
end at any time. What is kept for a worker that has ended is dropped with ``forget``. Main thread
only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Protocol

from horovod.core.base.checked import Fields, Record, between, nullable, shown
from horovod.core.base.cores import usable_cores
from horovod.core.base.rank_info import RankInfo
from horovod.launch.calls.call import WorkerFiles
from horovod.launch.model.host_plan import HostPlan, Rendezvous, WorkerSpec, worker_environment
from horovod.launch.workers.output import Output, Sink
from horovod.launch.workers.processes import (
    Watchdog,
    descendants,
    signal_group,
    signal_processes,
    spawn,
)

# Between SIGTERM and SIGKILL, and again until the launcher gives up on what is left.
GRACE_S = 5.0

# Of PyTorch, NumPy and other libraries. Without it the ranks of a host use all of its cores each.
_THREADS = "OMP_NUM_THREADS"
_CANNOT_START = 126
_NOT_FOUND = 127


@dataclass(eq=False)
class Worker:
    """One process of a job. ``number`` stays; ``slot`` may be replaced, as worlds follow others."""

    number: int
    rank_info: RankInfo
    pid: int
    exit_code: int | None = None  # negative: the signal that ended it

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"rank {self.rank_info.rank} on {self.rank_info.hostname} (pid {self.pid})"


@dataclass(frozen=True)
class Trouble(Record):
    """Why a worker cannot be started; ``status`` is the launcher's exit status for that.

    Without a ``number`` no worker can be started on the host.
    """

    status: Annotated[int, between(0, 255)]
    text: Annotated[str, shown()]
    number: Annotated[int | None, nullable(Fields.integer)] = None


class StartListener(Protocol):
    """Gets the outcome of ``start_worker``."""

    def started(self, worker: Worker) -> None:
        """A worker has been started."""

    def troubled(self, group: WorkerGroup, trouble: Trouble) -> None:
        """A worker cannot be started; it is not in the group."""


class WorkerGroup(Protocol):
    """The workers of one host, which may be another machine; ``workers`` by number."""

    workers: dict[int, Worker]

    @property
    def is_gone(self) -> bool:
        """Whether no process of it is left, as far as is known."""

    @property
    def living(self) -> int:
        """How many workers have not ended, as far as is known."""

    @property
    def deadline(self) -> float | None:
        """When ``balance`` has something to do, if nothing happens before."""

    def start_worker(self, spec: WorkerSpec) -> None:
        """Start one more worker; the listener gets the outcome."""

    def end_worker(self, number: int) -> None:
        """Ask a worker's process group to end, and kill what is left of it after ``GRACE_S``."""

    def kill_worker(self, number: int) -> None:
        """Kill a worker's process group."""

    def forget(self, number: int) -> None:
        """Keep nothing for this worker once it has ended.

        What is left of its process group is ended, and its output is closed.
        """

    def late(self) -> list[str]:
        """The names of the workers that are left."""

    def end(self, *, reaches_strays: bool) -> None:
        """Ask all processes to end; with ``reaches_strays`` also those that left their groups."""

    def kill(self) -> None:
        """Kill them."""

    def balance(self) -> None:
        """Do and send what is due; to be called in every turn of a loop."""


@dataclass
class _Group:
    """A worker with its process group, which may outlive it, and the sinks of its output."""

    worker: Worker
    sinks: tuple[Sink, Sink]
    is_gone: bool = False
    is_forgotten: bool = False
    is_asked: bool = False  # to end
    kill_at: float | None = None


@dataclass(eq=False, repr=False)
class LocalWorkerGroup:
    """The workers of this machine. ``other_children`` are children that it leaves alone.

    ``file_limit`` is a worker's soft limit of descriptors, if not that of this process.
    """

    _output: Output
    _watchdog: Watchdog
    _: KW_ONLY
    sinks: Callable[[Worker], tuple[Sink, Sink]]
    listener: StartListener
    other_children: Callable[[], Collection[int]] = tuple
    file_limit: int | None = None

    def __post_init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        self._groups: dict[int, _Group] = {}
        self._reaches_strays = False
        self._plan: HostPlan | None = None
        self._has_started = False  # any worker, ever

    def prepare(
        self,
        plan: HostPlan,
        rendezvous: Rendezvous,
        *,
        files: WorkerFiles | None = None,
        stdin_of: int | None = None,
        own_argv: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        """Set what all workers have in common, before the first is started.

        ``files`` are those of the call of ``horovod.run``, if it is one. Worker ``stdin_of``
        inherits standard input. ``own_argv`` has commands of single workers.
        """
        self._plan, self._rendezvous = plan, rendezvous
        self._files, self._stdin_of, self._own_argv = files, stdin_of, own_argv or {}

    def start_worker(self, spec: WorkerSpec) -> None:
        """See ``WorkerGroup``; needs ``prepare`` once before."""
        assert self._plan is not None
        plan, number = self._plan, spec.number
        environment = worker_environment(
            plan.environment, spec.rank_info, self._rendezvous, spec.extra, plan.interfaces
        )
        if spec.rank_info.local_size > 1 and not environment.get(_THREADS):  # "" is not set, too
            environment[_THREADS] = str(_threads_of(spec.rank_info))
        try:
            pipes = spawn(
                self._own_argv.get(number, plan.argv),
                environment,
                inherits_stdin=self._stdin_of == number,
                descriptors=self._files.for_worker(number) if self._files else None,
                file_limit=self.file_limit,
            )
        except OSError as error:
            self.listener.troubled(self, _trouble(plan.argv[0], spec, error))
            return
        self._has_started = True
        self._watchdog.add(pipes.pid)
        worker = self.workers[number] = Worker(number, spec.rank_info, pipes.pid)
        sinks = self.sinks(worker)
        self._groups[number] = _Group(worker, sinks)
        for fd, sink in zip((pipes.stdout_fd, pipes.stderr_fd), sinks, strict=True):
            self._output.forward(fd, sink)
        self.listener.started(worker)

    def note_exit(self, pid: int, exit_code: int) -> Worker | None:
        """The worker that this reaped process was."""
        for worker in self.workers.values():
            if worker.pid == pid and worker.exit_code is None:
                worker.exit_code = exit_code
                return worker
        return None

    @property
    def is_gone(self) -> bool:
        """See ``WorkerGroup``."""
        self.note_ended_groups()
        return all(group.is_gone for group in self._groups.values()) and not self._strays()

    def note_ended_groups(self) -> None:
        """Drop groups that have ended, since the system may reuse their numbers."""
        for number, group in list(self._groups.items()):
            worker = group.worker
            if worker.exit_code is None:
                continue
            if not group.is_gone and not signal_group(worker.pid, 0):
                group.is_gone, group.kill_at = True, None
                self._watchdog.drop(worker.pid)
            if group.is_gone and group.is_forgotten:
                self._output.finish(group.sinks)
                del self._groups[number], self.workers[number]
            elif group.is_forgotten:
                self.end_worker(number)

    @property
    def living(self) -> int:
        """See ``WorkerGroup``."""
        return sum(1 for worker in self.workers.values() if worker.exit_code is None)

    @property
    def deadline(self) -> float | None:
        """See ``WorkerGroup``."""
        times = [group.kill_at for group in self._groups.values() if group.kill_at is not None]
        return min(times, default=None)

    def end_worker(self, number: int) -> None:
        """See ``WorkerGroup``. An unknown worker has ended."""
        group = self._groups.get(number)
        if group is not None and not group.is_gone and not group.is_asked:
            group.is_asked, group.kill_at = True, time.monotonic() + GRACE_S
            # A stopped process sees SIGTERM once it continues.
            for signum in (signal.SIGTERM, signal.SIGCONT):
                signal_group(group.worker.pid, signum)

    def kill_worker(self, number: int) -> None:
        """See ``WorkerGroup``."""
        group = self._groups.get(number)
        if group is not None and not group.is_gone:
            signal_group(group.worker.pid, signal.SIGKILL)

    def forget(self, number: int) -> None:
        """See ``WorkerGroup``."""
        if number in self._groups:
            self._groups[number].is_forgotten = True
            self.note_ended_groups()

    def balance(self) -> None:
        """See ``WorkerGroup``."""
        now = time.monotonic()
        for number, group in self._groups.items():
            if group.kill_at is not None and now >= group.kill_at:
                group.kill_at = None
                self.kill_worker(number)

    def late(self) -> list[str]:
        """See ``WorkerGroup``."""
        return [group.worker.name for group in self._groups.values() if not group.is_gone]

    def end(self, *, reaches_strays: bool) -> None:
        """See ``WorkerGroup``."""
        self._reaches_strays = reaches_strays
        # A stopped process sees SIGTERM once it continues.
        self._send(signal.SIGTERM, signal.SIGCONT)

    def kill(self) -> None:
        """See ``WorkerGroup``."""
        self._send(signal.SIGKILL)

    def kill_groups(self) -> None:
        """Kill all workers that are left."""
        for number in self._groups:
            self.kill_worker(number)

    def _send(self, *signums: int) -> None:
        groups = [group.worker.pid for group in self._groups.values() if not group.is_gone]
        strays = self._strays(groups)
        for signum in signums:
            for group in groups:
                signal_group(group, signum)
            signal_processes(strays, signum)

    def _strays(self, groups: Sequence[int] = ()) -> list[int]:
        """Descendants outside the workers' groups; none after a success: they may live on."""
        if not self._reaches_strays or not self._has_started:
            return []
        pids = descendants(but_not=(self._watchdog.pid, *self.other_children()))
        return [pid for pid in pids if _group_of(pid) not in groups]


def _threads_of(rank_info: RankInfo) -> int:
    """A rank's share of the cores of this host."""
    return max(1, usable_cores() // rank_info.local_size)


def _trouble(word: str, spec: WorkerSpec, error: OSError) -> Trouble:
    where = f" on {spec.rank_info.hostname}"
    lacks_command = error.filename != os.devnull  # which a container may lack
    if lacks_command and isinstance(error, FileNotFoundError):
        path, hint = ("", "") if "/" in word else (" in PATH", _near_command(word))
        return Trouble(_NOT_FOUND, f"command not found{path}{where}: {word}{hint}", spec.number)
    if lacks_command and isinstance(error, PermissionError):
        text = f"{word}: not executable{where}: {error.strerror}"
    else:
        word = word if lacks_command else os.devnull
        text = f"cannot start rank {spec.rank_info.rank}{where} ({word}): {error.strerror}"
    return Trouble(_CANNOT_START, text, spec.number)


def _near_command(word: str) -> str:
    """A question that names a command much like ``word``, if there is one."""
    from difflib import get_close_matches  # here, because few starts need it

    folders = [
        path for path in os.get_exec_path() if os.path.isdir(path) and os.access(path, os.R_OK)
    ]
    names = {name for folder in folders for name in os.listdir(folder)}
    near = get_close_matches(word, sorted(names), 1, 0.8)
    return f"; did you mean {near[0]}?" if near else ""


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
