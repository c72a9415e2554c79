"""The agent of a job with an id: it outlives the connection with its launcher, and waits for it.

It is a process of its own session, one for each host of the job. The first proxy that finds none
starts it::

    driver --frames--> ssh or a child --> proxy --Unix socket--> detached agent --> workers

When the proxy ends, the agent goes on and keeps the newest output (``OutputBuffer``). To the next
proxy it sends HELLO with all workers that it has not been told to forget, then the output, then
exits. After the elastic timeout it ends its workers.

It listens on a Unix socket in the job's folder. Only proxies of the same user can connect; they
speak for the launcher. Arguments: job id, host, and the run that it belongs to. A launcher that
begins the job anew is another run, and gets another agent.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

from horovod.core.base.own_files import open_own
from horovod.launch.remote.agent import Agent, forget_signal_settings
from horovod.launch.remote.job_folder import (
    BUSY,
    ENDING,
    READY,
    WELCOME,
    JobFolder,
    JobFolderTakenError,
    host_folder_path,
    is_same_user,
    listen_at,
    unlink,
)
from horovod.launch.workers.wakeups import Wakeups

_LOG = "log"
_MOST_FIRST_S = 10.0  # for the proxy that has started it
_MAX_NAME_BYTES = 256


def main() -> NoReturn:
    """Look after the workers of one host until they have ended."""
    job_id, hostname, run = sys.argv[1:]
    forget_signal_settings()
    try:
        folder = JobFolder(host_folder_path(job_id, hostname, os.environ))
        _write_to_log(folder)
        listener = listen_at(folder.path)
    except JobFolderTakenError:
        _tell_proxy(BUSY)
    except OSError as error:
        _tell_proxy(str(error).encode())
    else:
        with listener, Wakeups() as wakeups, selectors.DefaultSelector() as selector:
            agent = _DetachedAgent(selector, wakeups, folder, listener, run.encode())
            _tell_proxy(READY)
            agent.serve(_MOST_FIRST_S)
    sys.exit(0)


def _write_to_log(folder: JobFolder) -> None:
    """Send standard error to a file, where an agent would write to the terminal."""
    fd = open_own(folder.path / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.ftruncate(fd, 0)
    os.dup2(fd, 2)
    os.close(fd)


def _tell_proxy(word: bytes) -> None:
    """Tell the proxy at the other end of standard output, which becomes the log afterwards."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, word)
    os.dup2(2, 1)


@dataclass(eq=False, repr=False)
class _DetachedAgent(Agent):
    _folder: JobFolder
    _listener: socket.socket
    _run: bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def say(self, text: str) -> None:
        """See ``Agent``."""
        super().say(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")
        sys.stderr.flush()

    def before_end(self) -> None:
        """Clean up. If the workers were ended without a launcher, the log is kept."""
        self._selector.unregister(self._listener)
        unlink(self._folder.path)
        if self.has_given_up:
            self._folder.close()
        else:
            self._folder.remove()

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return
        if not is_same_user(connected):
            connected.close()
            return
        connected.setblocking(False)
        self._selector.register(connected, selectors.EVENT_READ, lambda: self._answer(connected))

    def _answer(self, connected: socket.socket) -> None:
        """The proxy names its run, in one piece."""
        self._selector.unregister(connected)
        with connected, contextlib.suppress(OSError):
            name = connected.recv(_MAX_NAME_BYTES)
            if self.is_ending:
                connected.sendall(ENDING)
            elif name == self._run:
                connected.sendall(WELCOME)
                connected.setblocking(True)
                self.attach(os.dup(connected.fileno()), os.dup(connected.fileno()))
            elif self._connection.is_open:
                connected.sendall(b"another horovodrun has a job of this id here\n")
            elif name:
                connected.sendall(ENDING)
                self.give_up("the job begins anew")
