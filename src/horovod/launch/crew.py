"""The workers of one host: started, watched, ended, with all that they have started.

``Crew`` is what a job asks of a host, ``LocalCrew`` the one of the machine it is used on: in the
launcher, and in the agent that a launcher has on another host. Main thread only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from horovod.launch.environment import Rendezvous, worker_environment
from horovod.launch.host_plan import HostPlan
from horovod.launch.hosts import Slot
from horovod.launch.output import Output, Sink
from horovod.launch.processes import descendants, signal_group, signal_processes, spawn
from horovod.launch.watchdog import Watchdog

__all__ = ["GRACE_S", "Crew", "LocalCrew", "StartError", "Worker"]

# Between SIGTERM and SIGKILL, and again until what does not die is given up.
GRACE_S = 5.0

_CANNOT_START = 126
_NOT_FOUND = 127


@dataclass(eq=False)
class Worker:
    """One process of a job."""

    slot: Slot
    pid: int
    exit_code: int | None = None  # negative: the signal that ended it
    is_group_gone: bool = False

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"rank {self.slot.rank} on {self.slot.hostname} (pid {self.pid})"


class StartError(Exception):
    """A worker cannot be started; ``status`` is what the launcher then exits with."""

    def __init__(self, word: str, slot: Slot, error: OSError) -> None:
        where = f" on {slot.hostname}"
        if isinstance(error, FileNotFoundError):
            path = "" if "/" in word else " in PATH"
            super().__init__(f"command not found{path}{where}: {word}")
            self.status = _NOT_FOUND
            return
        self.status = _CANNOT_START
        if isinstance(error, PermissionError):
            super().__init__(f"{word}: not executable{where}: {error.strerror}")
        else:
            super().__init__(f"cannot start rank {slot.rank}{where} ({word}): {error.strerror}")


class Crew(Protocol):
    """The workers of one host, on whatever machine."""

    workers: list[Worker]

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left, as far as can be known."""

    @property
    def living(self) -> int:
        """How many workers have not ended, as far as can be known."""

    def late(self) -> list[str]:
        """Who is left."""

    def end(self, *, reaches_strays: bool) -> None:
        """Ask all processes to end, ``reaches_strays``: also those that left their groups."""

    def kill(self) -> None:
        """End them."""


class LocalCrew:
    """The workers of this machine. ``outsiders`` are children that are none of its business."""

    def __init__(
        self, output: Output, watchdog: Watchdog, outsiders: Callable[[], Collection[int]] = tuple
    ) -> None:
        self.workers: list[Worker] = []
        self._output = output
        self._watchdog = watchdog
        self._outsiders = outsiders
        self._reaches_strays = False

    def start(
        self,
        plan: HostPlan,
        rendezvous: Rendezvous,
        *,
        sinks: Callable[[int], tuple[Sink, Sink]],
        descriptors: Callable[[int], Mapping[int, int]] = lambda rank: {},
        reads_stdin: bool = False,
        on_started: Callable[[Worker], None],
    ) -> None:
        """Start what ``plan`` says; ``reads_stdin``: rank 0 inherits standard input.

        Raises:
            StartError: one cannot be started; those before it have been.
        """
        for place in plan.places:
            slot = place.slot
            environment = worker_environment(
                plan.environment, slot, rendezvous, place.extra, plan.interfaces
            )
            try:
                pipes = spawn(
                    plan.words,
                    environment,
                    inherits_stdin=reads_stdin and slot.rank == 0,
                    descriptors=descriptors(slot.rank),
                )
            except OSError as error:
                raise StartError(plan.words[0], slot, error) from None
            self._watchdog.add(pipes.pid)
            worker = Worker(slot, pipes.pid)
            self.workers.append(worker)
            for fd, sink in zip((pipes.stdout_fd, pipes.stderr_fd), sinks(slot.rank), strict=True):
                self._output.forward(fd, sink)
            on_started(worker)

    def note_exit(self, pid: int, exit_code: int) -> Worker | None:
        """The worker that this reaped process was."""
        for worker in self.workers:
            if worker.pid == pid and worker.exit_code is None:
                worker.exit_code = exit_code
                return worker
        return None

    @property
    def is_gone(self) -> bool:
        """See ``Crew``."""
        self.note_ended_groups()
        return all(worker.is_group_gone for worker in self.workers) and not self._strays()

    def note_ended_groups(self) -> None:
        """The numbers of groups that have ended may come to belong to someone else."""
        for worker in self.workers:
            if worker.exit_code is not None and not worker.is_group_gone:
                worker.is_group_gone = not signal_group(worker.pid, 0)
                if worker.is_group_gone:
                    self._watchdog.drop(worker.pid)

    @property
    def living(self) -> int:
        """See ``Crew``."""
        return sum(1 for worker in self.workers if worker.exit_code is None)

    def late(self) -> list[str]:
        """See ``Crew``."""
        return [worker.name for worker in self.workers if not worker.is_group_gone]

    def end(self, *, reaches_strays: bool) -> None:
        """See ``Crew``."""
        self._reaches_strays = reaches_strays
        # A stopped process sees SIGTERM once it continues.
        self._send(signal.SIGTERM, signal.SIGCONT)

    def kill(self) -> None:
        """See ``Crew``."""
        self._send(signal.SIGKILL)

    def kill_groups(self) -> None:
        """Whatever happened: leave no worker behind. Does nothing once all have ended."""
        for worker in self.workers:
            if not worker.is_group_gone:
                signal_group(worker.pid, signal.SIGKILL)

    def _send(self, *signums: int) -> None:
        groups = [worker.pid for worker in self.workers if not worker.is_group_gone]
        strays = self._strays(groups)
        for signum in signums:
            for group in groups:
                signal_group(group, signum)
            signal_processes(strays, signum)

    def _strays(self, groups: Sequence[int] = ()) -> list[int]:
        """Descendants outside the workers' groups; after a success those may live on."""
        if not self._reaches_strays or not self.workers:
            return []
        pids = descendants(but_not=(self._watchdog.pid, *self._outsiders()))
        return [pid for pid in pids if _group_of(pid) not in groups]


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
