"""The child of the launcher that is connected with another host: ssh, or what takes its place.

In a session of its own, so that Ctrl-C in the terminal does not end it before the workers, and
nobody asks for a password. Its standard input and output are for frames; of standard error, where
ssh, login scripts and a broken agent complain, the end is kept for messages.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from horovod.launch.model.host_plan import HostPlan
from horovod.launch.wire.channel import FrameWriter
from horovod.launch.workers.processes import describe_exit, signal_group, spawn
from horovod.launch.workers.watchdog import Watchdog

__all__ = ["SshChild"]

_READ_BYTES = 256 * 1024
_KEPT_BYTES = 8 * 1024
_KEPT_LINES = 20


class SshChild:
    """Runs ``words``; ``on_data`` gets what they write to standard output, piece by piece."""

    def __init__(
        self,
        words: Sequence[str],
        selector: selectors.BaseSelector,
        watchdog: Watchdog,
        on_data: Callable[[bytes], None],
    ) -> None:
        self.words = tuple(words)
        self.pid = 0
        self.exit_code: int | None = None  # None also if it could not be started
        self._selector = selector
        self._watchdog = watchdog
        self._on_data = on_data
        self._writer: FrameWriter | None = None
        self._stdin_fd = self._stdout_fd = self._stderr_fd = -1
        self._errors = b""

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not been reaped."""
        return self.pid > 0 and self.exit_code is None

    @property
    def how_it_ended(self) -> str:
        """``ssh exited with code 255``."""
        return f"{os.path.basename(self.words[0])} {describe_exit(self.exit_code or 0)}"

    @property
    def last_lines(self) -> str:
        """The end of its standard error."""
        lines = self._errors.decode(errors="backslashreplace").splitlines()
        return "\n".join(line.rstrip() for line in lines[-_KEPT_LINES:] if line.strip())

    def sealed(self, plan: HostPlan) -> HostPlan:
        """The plan as it can travel: ssh hides all of it."""
        return plan

    def start(self, environ: Mapping[str, str]) -> None:
        """Start it. Raises OSError; nothing was started then."""
        reader, self._stdin_fd = os.pipe()
        try:
            pipes = spawn(self.words, environ, inherits_stdin=True, descriptors={0: reader})
        except OSError:
            self.hang_up()
            raise
        finally:
            os.close(reader)
        self._watchdog.add(pipes.pid)
        self.pid, self._stdout_fd, self._stderr_fd = pipes.pid, pipes.stdout_fd, pipes.stderr_fd
        self._writer = FrameWriter(self._stdin_fd, self._selector)
        for fd, read in ((self._stdout_fd, self._read), (self._stderr_fd, self._read_errors)):
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ, read)

    @property
    def writer(self) -> FrameWriter | None:
        """Where frames go; None when the connection has ended."""
        return self._writer

    def note_exit(self, exit_code: int) -> None:
        """It was reaped; what it has left in its pipes is read now."""
        self._watchdog.drop(self.pid)
        self.exit_code = exit_code
        while self._read() and self._stdout_fd >= 0:
            pass
        self._read_errors()
        self._close_files()

    def hang_up(self) -> None:
        """Close its standard input; an agent at its end then ends its workers and itself."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._stdin_fd >= 0:
            os.close(self._stdin_fd)
            self._stdin_fd = -1

    def abort(self) -> None:
        """End it, and listen no more."""
        self._close_files()
        if self.is_running:
            signal_group(self.pid, signal.SIGTERM)

    def close(self, deadline: float) -> None:
        """Hang up and reap it; whatever is left at ``deadline`` is killed. May be repeated."""
        self._close_files()
        if self.is_running:
            _wait_for_exit(self.pid, deadline)
            signal_group(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.exit_code = 0
            self._watchdog.drop(self.pid)

    def _read(self) -> int:
        """How many bytes came."""
        if self._stdout_fd < 0:
            return 0
        try:
            data = os.read(self._stdout_fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._on_data(data)
        else:
            self._stdout_fd = self._forget(self._stdout_fd)
        return len(data)

    def _read_errors(self) -> None:
        if self._stderr_fd < 0:
            return
        with suppress(BlockingIOError):
            data = os.read(self._stderr_fd, _READ_BYTES)
            self._errors = (self._errors + data)[-_KEPT_BYTES:]
            if not data:
                self._stderr_fd = self._forget(self._stderr_fd)

    def _close_files(self) -> None:
        self.hang_up()
        self._stdout_fd = self._forget(self._stdout_fd)
        self._stderr_fd = self._forget(self._stderr_fd)

    def _forget(self, fd: int) -> int:
        if fd >= 0:
            self._selector.unregister(fd)
            os.close(fd)
        return -1


def _wait_for_exit(pid: int, deadline: float) -> None:
    """Returns once the child can be reaped, or at the deadline."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, AttributeError):  # an old kernel: it is not waited for
        return
    try:
        select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        os.close(pidfd)
