"""Groups of worker processes that stay alive together and are measured in turns.

The driver has a socket to every worker. Workers that are not measured block in a read on it, not
inside their library, so they take no core from the measured group. This makes peers in one run
comparable.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from mpich_venv import ensure_mpich_venv

__all__ = [
    "Commands",
    "GroupSpec",
    "Measured",
    "Starter",
    "Way",
    "WorkerGroup",
    "call_all",
    "check_equal",
    "commands_here",
    "measure_and_release",
    "measure_in_turns",
    "open_groups",
]

_WORKER = Path(__file__).with_name("worker.py")
_BIN = Path(sys.executable).parent
_START_TIMEOUT_S = 120.0
_CALL_TIMEOUT_S = 600.0


# Commands that start the workers of a group, each with additions to the environment.
Commands = list[tuple[list[str], dict[str, str]]]
# Makes them from a launcher, a number of ranks, the words of a worker, and a path for a store.
Starter = Callable[[str, int, Sequence[str], str], Commands]


@dataclass(frozen=True)
class GroupSpec:
    """A contestant: its name in tables, its launcher, and its adapter in ``contestants``."""

    name: str
    launcher: str
    contestant: str


class WorkerGroup:
    """The workers of one contestant; ``call`` runs a method of their bench object on all."""

    def __init__(
        self, spec: GroupSpec, rank_count: int, bench_path: str, start: Starter | None = None
    ) -> None:
        self.name = spec.name
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: list[Connection] = []
        address = f"{self._folder.name}/driver"
        store = f"{self._folder.name}/store"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(rank_count)
            words = [str(_WORKER), address, spec.contestant, bench_path]
            commands = (start or commands_here)(spec.launcher, rank_count, words, store)
            for command, environment in commands:
                self._processes.append(_start(command, environment))
            try:
                self._accept(listener, rank_count)
            except BaseException:
                self.close()
                raise

    def call(self, method: str, **arguments: Any) -> list[Any]:
        """Results of ``method`` on every worker; raises ``RuntimeError`` if one of them failed."""
        for worker in self._workers:
            worker.send((method, arguments))
        return [self._receive(worker, method) for worker in self._workers]

    def dismiss(self) -> None:
        """Tell the workers to end."""
        for worker in self._workers:
            if not worker.closed:
                with worker, contextlib.suppress(OSError):  # it may have died
                    worker.send(None)

    def close(self) -> None:
        """End the workers, by a signal if they do not end themselves, and remove their files."""
        self.dismiss()
        for process in self._processes:
            _end(process, timeout_s=20 if self._workers else 0)
        self._folder.cleanup()

    def _accept(self, listener: socket.socket, rank_count: int) -> None:
        listener.settimeout(0.2)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while len(self._workers) < rank_count:
            try:
                channel, _ = listener.accept()
            except TimeoutError:
                ended = [p for p in self._processes if p.poll() is not None]
                if ended or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name}: the workers did not start") from None
            else:
                channel.setblocking(True)
                self._workers.append(Connection(channel.detach()))

    def _receive(self, worker: Connection, method: str) -> Any:
        if not worker.poll(_CALL_TIMEOUT_S):
            raise RuntimeError(f"{self.name}: no answer to {method} in {_CALL_TIMEOUT_S:.0f} s")
        try:
            is_fine, result = worker.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"{self.name}: a worker ended during {method}") from error
        if not is_fine:
            raise RuntimeError(f"{self.name}: {method} failed in a worker\n{result}")
        return result


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            process.wait(timeout=timeout_s)
            return
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signum)
            timeout_s = 20
    process.wait(timeout=20)


@contextmanager
def open_groups(
    specs: Sequence[GroupSpec],
    rank_count: int,
    bench_path: str,
    start: Starter | None = None,
    *,
    at_once: bool = False,
) -> Iterator[list[WorkerGroup]]:
    """All groups, alive together and closed at the end; by default on this machine.

    They start one after the other, or all at one time: ``at_once``.
    """
    with ExitStack() as stack:

        def open_group(spec: GroupSpec) -> WorkerGroup:
            _tell(f"starting {spec.name}")
            group = WorkerGroup(spec, rank_count, bench_path, start)
            stack.callback(group.close)
            return group

        with ThreadPoolExecutor(len(specs) if at_once else 1) as starters:
            groups = list(starters.map(open_group, specs))
        _tell("")
        yield groups
        for group in groups:
            group.dismiss()


def call_all(groups: Sequence[WorkerGroup], method: str, **arguments: Any) -> list[list[Any]]:
    """The results of ``method`` on all groups, which run it at the same time."""
    with ThreadPoolExecutor(len(groups)) as callers:
        return list(callers.map(lambda group: group.call(method, **arguments), groups))


def _tell(text: str) -> None:
    """Show on a terminal what is going on, in place of what was shown last."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


class Measured(Protocol):
    """A group of workers, or one way to use a group."""

    name: str

    def call(self, method: str, **arguments: Any) -> list[Any]: ...


def measure_in_turns(
    groups: Sequence[Measured], *, rounds: int, loop_s: float
) -> dict[str, list[float]]:
    """Seconds per iteration of each group's ``measure``, one figure per round.

    Every round measures each group once, starting with another group each time. A loop takes
    about ``loop_s``; its figure is that of the slowest rank.
    """
    iterations = {}
    for group in groups:
        _tell(f"warming up {group.name}")
        iterations[group.name] = _iterations(group, loop_s)
    times: dict[str, list[float]] = {group.name: [] for group in groups}
    for index in range(rounds):
        _tell(f"round {index + 1} of {rounds}")
        first = index % len(groups)
        for group in [*groups[first:], *groups[:first]]:
            seconds = group.call("measure", iterations=iterations[group.name])
            times[group.name].append(max(seconds))
    _tell("")
    return times


def measure_and_release(
    groups: Sequence[WorkerGroup], is_quick: bool, loop_s: float, quick_loop_s: float
) -> dict[str, list[float]]:
    """``measure_in_turns`` with 9 rounds, or 3 if ``is_quick``; then ``release`` on each group."""
    rounds, seconds = (3, quick_loop_s) if is_quick else (9, loop_s)
    times = measure_in_turns(groups, rounds=rounds, loop_s=seconds)
    for group in groups:
        group.call("release")
    return times


def check_equal(group: WorkerGroup, sums: Sequence[float]) -> None:
    """``RuntimeError`` if the ranks' weights differ: they were not reduced."""
    if len(set(sums)) != 1:
        raise RuntimeError(f"{group.name}: the ranks' weights differ: {sums}")


class Way:
    """One way to use a group: ``use`` gets ``settings`` before each call."""

    def __init__(self, name: str, group: WorkerGroup, **settings: Any) -> None:
        self.name = name
        self._group = group
        self._settings = settings

    def call(self, method: str, **arguments: Any) -> list[Any]:
        self._group.call("use", **self._settings)
        return self._group.call(method, **arguments)


def _iterations(group: Measured, loop_s: float) -> int:
    first = max(group.call("measure", iterations=1))  # also warms up
    estimate = max(group.call("measure", iterations=max(1, min(100, int(loop_s / 4 / first)))))
    return max(1, min(20_000, int(loop_s / estimate)))


def commands_here(launcher: str, rank_count: int, words: Sequence[str], store: str) -> Commands:
    """The ``Starter`` of workers on this machine."""
    count = str(rank_count)
    if launcher == "processes":
        shared = {"BENCH_SIZE": count, "BENCH_STORE": store}
        own = [{**shared, "BENCH_RANK": str(rank)} for rank in range(rank_count)]
        return [([sys.executable, *words], environment) for environment in own]
    if launcher == "horovodrun":
        launch = [sys.executable, "-m", "horovod.runner.launch", "-np", count]
        return [([*launch, sys.executable, *words], {})]
    if launcher == "openmpi":
        crowded = ["--oversubscribe"] if rank_count > (os.cpu_count() or 1) else []
        flags = ["--allow-run-as-root", *crowded, "-n", count]
        return [([str(_BIN / "mpiexec"), *flags, sys.executable, *words], {})]
    if launcher == "mpich":
        folder = ensure_mpich_venv()
        return [([str(folder / "mpiexec"), "-n", count, str(folder / "python"), *words], {})]
    raise ValueError(f"no launcher {launcher!r}")


def _start(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start ``command`` in its own session, with one compute thread per rank."""
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"{command[0]} is missing: `make bench` installs what it needs")
    return subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
