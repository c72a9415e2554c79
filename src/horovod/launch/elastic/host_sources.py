"""Where the hosts of an elastic job come from: a script, a fixed list, or embedded agents.

A source tells ``report`` what it finds, on the thread that calls it. The launcher reaps all its
children itself, so the script is handed to ``adopt`` with what to call with its exit status.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Mapping

from horovod.launch.elastic.discovery import Discovery, Finding, Trouble
from horovod.launch.embedded.agent_news import AgentUpdates
from horovod.launch.model.host_plan import command_argv
from horovod.launch.model.job_plan import EmbeddedAgentAddress
from horovod.launch.workers.processes import describe_exit, signal_group

_PERIOD_S = 1.0
_LIMIT_S = 10.0
_READ_BYTES = 65536
_MAX_OUTPUT_BYTES = 1024 * 1024

Report = Callable[[Finding], None]


class HostSource:
    """The source of a job's hosts. ``deadline`` is when ``tick`` is needed."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.deadline: float | None = None

    def tick(self, now: float) -> None:
        """Do what is due; never blocks."""

    def close(self) -> None:
        """End what runs; a child of it is still to be reaped."""


class FixedHosts(HostSource):
    """Hosts that never change."""

    def __init__(self, hosts: Mapping[str, int], report: Report) -> None:
        super().__init__(report)
        self._hosts = dict(hosts)
        self.deadline = 0.0

    def tick(self, now: float) -> None:
        """Report the hosts once."""
        if self.deadline is not None:
            self.deadline = None
            self._report(Finding(self._hosts))


class EmbeddedAgentHosts(HostSource):
    """Embedded agents as hosts. They come and go as the engine that placed them says.

    ``addresses`` are those of all agents that have ever been there.
    """

    def __init__(
        self, updates: AgentUpdates, selector: selectors.BaseSelector, report: Report
    ) -> None:
        super().__init__(report)
        self.addresses: dict[str, EmbeddedAgentAddress] = {}
        self._updates = updates
        self._selector = selector
        selector.register(updates, selectors.EVENT_READ, self._read)

    def close(self) -> None:
        """See ``HostSource``."""
        self._selector.unregister(self._updates)

    def _read(self) -> None:
        self._updates.clear()
        agents = self._updates.latest
        if isinstance(agents, str):
            self._report(Finding(error=agents, is_final=True))
            return
        self.addresses.update({name: agent.address for name, agent in agents.items()})
        self._report(Finding({name: agent.slots for name, agent in agents.items()}))


class DiscoveryScript(HostSource):
    """Runs ``command`` every second, never twice at a time, and for 10 s at most.

    The command leads a process group of its own, reads nothing, and writes errors where the
    launcher does. A command with spaces is run by ``/bin/sh``.
    """

    def __init__(
        self,
        command: str,
        slots_per_host: int | None,
        selector: selectors.BaseSelector,
        report: Report,
        environ: Mapping[str, str],
        adopt: Callable[[int, Callable[[int], None]], None],
    ) -> None:
        super().__init__(report)
        self.pid: int | None = None  # the script that runs now
        self._adopt = adopt
        self._argv = command_argv((command,))
        self._discovery = Discovery(f"the host discovery script {command}", slots_per_host)
        self._selector = selector
        self._environ = environ
        self._fd: int | None = None
        self._output = bytearray()
        self._is_too_slow = False
        self._next_start = 0.0
        self.deadline = 0.0

    def tick(self, now: float) -> None:
        """Start the script or, if it still runs, end it."""
        if self.deadline is None or now < self.deadline:
            return
        if self.pid is None:
            self._start(now)
        else:
            # The next start waits for its exit, which a dead file system can hold up.
            self._is_too_slow = True
            self.deadline = None
            signal_group(self.pid, signal.SIGKILL)
            text = f"it took longer than {_LIMIT_S:g} s"
            self._report(self._discovery.failed(Trouble.SLOW, text))

    def _note_exit(self, status: int) -> None:
        """The script was reaped; a negative ``status`` is a signal."""
        # A child that outlives the script may hold the pipe open, so only what is there is read.
        while self._read_some() and len(self._output) <= _MAX_OUTPUT_BYTES:
            pass
        self._close_pipe()
        self.pid = None
        self.deadline = self._next_start
        if not self._is_too_slow:
            self._report(self._finding(status))

    def close(self) -> None:
        """See ``HostSource``."""
        if self.pid is not None:
            signal_group(self.pid, signal.SIGKILL)
        self._close_pipe()
        self.deadline = None

    def _start(self, now: float) -> None:
        self._next_start = now + _PERIOD_S
        self._output.clear()
        self._is_too_slow = False
        self.deadline = now + _LIMIT_S
        read_fd, write_fd = os.pipe()
        try:
            self.pid = self._spawn(write_fd)
        except OSError as error:
            os.close(read_fd)
            self.deadline = self._next_start
            text = f"{self._argv[0]} cannot be run: {error.strerror}"
            self._report(self._discovery.failed(Trouble.FAILING, text))
            return
        finally:
            os.close(write_fd)
        os.set_blocking(read_fd, False)
        self._fd = read_fd
        self._selector.register(read_fd, selectors.EVENT_READ, self._read_some)
        self._adopt(self.pid, self._note_exit)

    def _spawn(self, write_fd: int) -> int:
        return os.posix_spawnp(
            self._argv[0],
            self._argv,
            self._environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, write_fd, 1),
            ],
            setsid=True,
            # Python ignores these two; a script should meet them as from a shell.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )

    def _finding(self, status: int) -> Finding:
        if status != 0:
            return self._discovery.failed(Trouble.FAILING, f"it {describe_exit(status)}")
        if len(self._output) > _MAX_OUTPUT_BYTES:
            text = f"it printed more than {_MAX_OUTPUT_BYTES} bytes"
            return self._discovery.failed(Trouble.GARBAGE, text)
        return self._discovery.answered(self._output.decode(errors="backslashreplace"))

    def _read_some(self) -> bool:
        if self._fd is None:
            return False
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close_pipe()
        elif len(self._output) <= _MAX_OUTPUT_BYTES:
            self._output += data
        return bool(data)

    def _close_pipe(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._fd)
            os.close(self._fd)
            self._fd = None
