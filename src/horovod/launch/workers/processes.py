"""Starting worker processes and ending them with all that they started.

A worker leads a session of its own. Its pid names the process group of its children, unless they
leave it, and Ctrl-C in the terminal reaches the launcher alone. Workers are started with
posix_spawn, which needs no copy of the launcher and reports a command that cannot run. The code
that ends them imports nothing and needs few descriptors, since there may be no others then.

A watchdog ends the workers when the launcher itself is killed with SIGKILL. It is a shell in a
session of its own: it starts in a millisecond, and ``pkill -9 -f horovodrun`` does not match it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from horovod.rendezvous.base.descriptors import limit_child, limited_to

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_ABOVE_TARGETS = 16


class Pipes(NamedTuple):
    """A started worker: its pid and the read ends of its output."""

    pid: int
    stdout_fd: int
    stderr_fd: int


def open_standard_files() -> None:
    """Open descriptors 0, 1 and 2, so that no pipe gets one of these numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def take_stdin() -> int:
    """Move standard input to the descriptor returned, and put an empty file in its place."""
    taken = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return taken


def spawn(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    inherits_stdin: bool,
    descriptors: Mapping[int, int] | None = None,
    file_limit: int | None = None,
) -> Pipes:
    """Start ``words`` in a new session, found along the launcher's PATH; never blocks.

    ``descriptors`` maps numbers in the worker, from 3, to open descriptors of this process.
    ``file_limit`` is its soft limit of descriptors, if not that of this process.

    Raises:
        OSError: the command cannot be run (FileNotFoundError, PermissionError) or the system has
            no more processes or descriptors. Nothing was started then.
    """
    fds: list[int] = []
    try:
        fds += os.pipe()
        fds += os.pipe()
        stdout_fd, stdout_write, stderr_fd, stderr_write = fds
        actions = [(os.POSIX_SPAWN_DUP2, stdout_write, 1), (os.POSIX_SPAWN_DUP2, stderr_write, 2)]
        for number, fd in (descriptors or {}).items():
            # Above all targets, so that no number is a target before it was a source.
            fds.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE_TARGETS))
            actions.append((os.POSIX_SPAWN_DUP2, fds[-1], number))
        if not inherits_stdin:
            # Opened here: the worker may have reached its limit of open descriptors.
            fds.append(os.open(os.devnull, os.O_RDONLY))
            actions.append((os.POSIX_SPAWN_DUP2, fds[-1], 0))
        # Python ignores these two signals; a worker gets them as from a shell.
        defaults, argv = [signal.SIGPIPE, signal.SIGXFSZ], list(words)
        # glibc refuses to duplicate a descriptor above the limit. Then the limit is set a moment
        # later, before the program has been loaded.
        is_above = file_limit is not None and max(fds) >= file_limit
        with limited_to(None if is_above else file_limit):
            pid = os.posix_spawnp(
                argv[0], argv, environment, file_actions=actions, setsid=True, setsigdef=defaults
            )
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    if file_limit is not None and is_above:
        limit_child(pid, file_limit)
    for fd in fds:
        if fd not in (stdout_fd, stderr_fd):
            os.close(fd)
    return Pipes(pid, stdout_fd, stderr_fd)


def describe_exit(exit_code: int) -> str:
    """``exited with code 3``, or ``was ended by SIGKILL`` for a negative one."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def reaped() -> Iterator[tuple[int, int]]:
    """The children that have ended since the last call, with their exit codes; never blocks."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, so that this process sees them end.

    Linux only; elsewhere nothing happens, and ends are seen at the next deadline.
    """
    if sys.platform == "linux":
        import ctypes  # here, because the workers are starting by now

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_group(group: int, signum: int) -> bool:
    """Send ``signum`` (0: nothing) to a process group; False when none of it is left."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):  # the latter: it has changed its user
        return False
    return True


def descendants(but_not: Collection[int]) -> list[int]:
    """Pids of all living descendants, whatever group or session they have moved to.

    Those in ``but_not`` are left out with their own descendants. Linux only; elsewhere none are
    found.
    """
    children = _living_children()
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        for pid, is_zombie in children.get(waiting.pop(), ()):
            if pid not in but_not:
                waiting.append(pid)
                found += [] if is_zombie else [pid]
    return found


def _living_children() -> dict[int, list[tuple[int, bool]]]:
    """By parent, the pids of the machine's processes, and whether they are zombies (proc(5))."""
    children: dict[int, list[tuple[int, bool]]] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            # A process may have ended since.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
                children.setdefault(int(parent), []).append((int(name), state in (b"Z", b"X")))
    return children


def signal_processes(pids: Collection[int], signum: int) -> None:
    """Send ``signum`` to those of ``pids`` that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


_SCRIPT = """
trap '' HUP INT TERM
groups=
while read -r verb group; do
  case $verb in
    add) groups="$groups $group" ;;
    drop)
      kept=
      for each in $groups; do [ "$each" = "$group" ] || kept="$kept $each"; done
      groups=$kept ;;
  esac
done
for each in $groups; do kill -s TERM -- "-$each"; kill -s CONT -- "-$each"; done
for second in 1 2 3 4 5; do
  left=
  for each in $groups; do kill -s 0 -- "-$each" && left=1; done
  [ -n "$left" ] || exit 0
  sleep 1
done
for each in $groups; do kill -s KILL -- "-$each"; done
"""


class Watchdog:
    """Ends process groups that must not outlive the launcher; ``pid`` is 0 without a shell.

    The shell sleeps in ``read`` until the launcher's end of a pipe closes, for whatever reason.
    """

    def __init__(self) -> None:
        self.pid = 0
        reader, self._writer = os.pipe()
        silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        actions = [(os.POSIX_SPAWN_DUP2, reader, 0), *silent]
        words = ["/bin/sh", "-c", _SCRIPT]
        with contextlib.suppress(OSError):
            self.pid = os.posix_spawn(
                words[0], words, {"PATH": os.defpath}, file_actions=actions, setsid=True
            )
        os.close(reader)

    def add(self, group: int) -> None:
        """End ``group`` with the launcher."""
        self._tell(f"add {group}\n")

    def drop(self, group: int) -> None:
        """``group`` has ended; the system may reuse its number."""
        self._tell(f"drop {group}\n")

    def close(self) -> None:
        """End the watchdog; blocks until it has ended."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = 0
        os.close(self._writer)

    def was_reaped(self) -> None:
        """The watchdog has ended by itself."""
        self.pid = 0

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer, line.encode())
