"""Where the hosts of an elastic job come from: a script, a fixed list, or embedded agents.

A source tells ``report`` what it finds, on the thread that calls it. The launcher reaps all its
children itself, so the script is handed to ``adopt`` with what to call with its exit status.
``Discovery`` reads its answers and says what holds while it has none; it is pure.
"""

from __future__ import annotations

import errno
import os
import re
import selectors
import signal
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from horovod.launch.embedded.agent_news import AgentUpdates, FoundAgents
from horovod.launch.model.host_plan import command_argv
from horovod.launch.model.job_plan import EmbeddedAgentAddress
from horovod.launch.workers.output import Feed, Output
from horovod.launch.workers.processes import describe_exit, signal_group
from horovod.launch.workers.wakeups import Wakeups

_LINE = re.compile(r"(\w[\w.-]*)(?::([0-9]{1,6}))?", re.ASCII)


def parse_found_hosts(text: str, slots_per_host: int | None) -> dict[str, int]:
    """Hosts of lines ``host`` or ``host:slots`` in their order; repeated and empty lines are fine.

    ``slots_per_host`` is for lines without a number. A host with 0 slots counts as not listed.

    Raises:
        ValueError: a line is something else, lacks a number, or contradicts an earlier one.
    """
    hosts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.strip():
            where = f"line {number}, {_short(words)!r}"
            name, slots = _parse_line(where, words, slots_per_host)
            if hosts.setdefault(name, slots) != slots:
                raise ValueError(f"{where}: an earlier line says {name}:{hosts[name]}")
    return {name: slots for name, slots in hosts.items() if slots > 0}


def _parse_line(where: str, words: str, slots_per_host: int | None) -> tuple[str, int]:
    match = _LINE.fullmatch(words)
    if match is None:
        raise ValueError(f"{where}: expected host or host:slots")
    if match[2] is not None:
        return match[1], int(match[2])
    if slots_per_host is None:
        raise ValueError(f"{where}: no number of slots; print {words}:N, or give --slots-per-host")
    return match[1], slots_per_host


def _reason(program: str, error: OSError) -> str:
    """Why ``program`` could not be run, and what to do about it if it is a file."""
    hints = {
        errno.ENOENT: "" if os.sep in program else f"; did you mean ./{program}?",
        errno.EACCES: f"; try chmod +x {program}",
        errno.ENOEXEC: "; a script begins with a line such as #!/bin/sh",
    }
    hint = hints.get(error.errno or 0, "") if os.path.isfile(program) else ""
    return f"{error.strerror}{hint}"


def _short(line: str) -> str:
    return line if len(line) <= 60 else f"{line[:57]}..."


class Trouble(Enum):
    """Why a discovery has no answer."""

    FAILING = "fails"
    SLOW = "is too slow"
    GARBAGE = "prints what is not a list of hosts"


class Finding(NamedTuple):
    """The result of one call of the discovery.

    ``hosts`` is a good answer. ``log`` is a line for the user, empty unless something changed.
    ``error``: there has never been an answer, so the job cannot begin, or, if it ``is_final``,
    there will be none any more.
    """

    hosts: Mapping[str, int] | None = None
    log: str = ""
    error: str = ""
    is_final: bool = False


class Discovery:
    """The last good answer of ``source``. Each trouble, and its end, is reported once."""

    def __init__(self, source: str, slots_per_host: int | None) -> None:
        self.hosts: Mapping[str, int] | None = None
        self._source = source
        self._slots_per_host = slots_per_host
        self._trouble: Trouble | None = None

    def answered(self, text: str) -> Finding:
        """It has printed ``text``."""
        try:
            self.hosts = parse_found_hosts(text, self._slots_per_host)
        except ValueError as error:
            return self.failed(Trouble.GARBAGE, str(error))
        log = f"{self._source} works again" if self._trouble else ""
        self._trouble = None
        return Finding(self.hosts, log)

    def failed(self, trouble: Trouble, text: str) -> Finding:
        """There is no answer; ``text`` says more."""
        if self.hosts is None:
            return Finding(error=f"{self._source} {trouble.value}: {text}")
        is_new = trouble is not self._trouble
        self._trouble = trouble
        said = f"{self._source} {trouble.value}: {text}; the last good answer is kept"
        return Finding(log=said if is_new else "")


_PERIOD_S = 1.0
_LIMIT_S = 10.0
_MAX_OUTPUT_BYTES = 1024 * 1024

Report = Callable[[Finding], None]


class HostSource:
    """The source of a job's hosts. ``deadline`` is when ``tick`` is needed.

    This one has no news: the hosts never change.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.deadline: float | None = None

    def tick(self, now: float) -> None:
        """Do what is due; never blocks."""

    def close(self) -> None:
        """End what runs; a child of it is still to be reaped."""


class EmbeddedAgentHosts(HostSource):
    """Embedded agents as hosts. They come and go as the engine that placed them says.

    ``addresses`` are those of all agents that have ever been there.
    """

    def __init__(self, updates: AgentUpdates, wakeups: Wakeups, report: Report) -> None:
        super().__init__(report)
        self.addresses: dict[str, EmbeddedAgentAddress] = {}
        updates.tell(lambda message: wakeups.call(lambda: self._read(message)))

    def _read(self, agents: FoundAgents | str) -> None:
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
        self._environ = environ
        self._pipe = Output(selector)
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
        self._pipe.drain()
        self.pid = None
        self.deadline = self._next_start
        if not self._is_too_slow:
            self._report(self._finding(status))

    def close(self) -> None:
        """See ``HostSource``."""
        if self.pid is not None:
            signal_group(self.pid, signal.SIGKILL)
        self._pipe.abandon()
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
            text = f"{self._argv[0]} cannot be run: {_reason(self._argv[0], error)}"
            self._report(self._discovery.failed(Trouble.FAILING, text))
            return
        finally:
            os.close(write_fd)
        self._pipe.forward(read_fd, Feed(self._take))
        self._adopt(self.pid, self._note_exit)

    def _spawn(self, write_fd: int) -> int:
        no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        actions = [no_input, (os.POSIX_SPAWN_DUP2, write_fd, 1)]
        # Python ignores these two; a script should meet them as from a shell.
        defaults = [signal.SIGPIPE, signal.SIGXFSZ]
        argv, environ = self._argv, self._environ
        return os.posix_spawnp(
            argv[0], argv, environ, file_actions=actions, setsid=True, setsigdef=defaults
        )

    def _finding(self, status: int) -> Finding:
        if status != 0:
            return self._discovery.failed(Trouble.FAILING, f"it {describe_exit(status)}")
        if len(self._output) > _MAX_OUTPUT_BYTES:
            text = f"it printed more than {_MAX_OUTPUT_BYTES} bytes"
            return self._discovery.failed(Trouble.GARBAGE, text)
        return self._discovery.answered(self._output.decode(errors="backslashreplace"))

    def _take(self, data: bytes) -> None:
        if len(self._output) <= _MAX_OUTPUT_BYTES:
            self._output += data
