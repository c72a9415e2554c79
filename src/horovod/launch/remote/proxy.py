"""Connects a launcher with the detached agent of a host: copies between standard files and socket.

It is started where an agent would be, by ssh or on the launcher's own machine, with the agent's
arguments: job id, host, and run. It starts the agent if there is none. When either side ends, the
proxy ends, and the agent stays.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import NoReturn

from horovod.launch.remote.job_folder import (
    BUSY,
    ENDING,
    READY,
    WELCOME,
    connect_to_agent,
    host_folder_path,
)
from horovod.launch.workers.python_command import python_command

_COPY_BYTES = 256 * 1024
_MOST_WORD_BYTES = 4096
_TIMEOUT_S = 20.0  # for an agent that ends, or has yet to answer
_PAUSE_S = 0.05


def main() -> NoReturn:
    """Connect, and copy until either side ends."""
    job_id, hostname, run = sys.argv[1:]
    try:
        agent = _connected(host_folder_path(job_id, hostname, os.environ), run)
    except OSError as error:
        sys.exit(f"horovod: no agent of job {job_id} on this host: {error}")
    with agent, contextlib.suppress(ConnectionError):
        copy(agent)
    sys.exit(0)


def _connected(path: Path, run: str) -> socket.socket:
    """A connection with the agent of this run. Raises OSError."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        agent = connect_to_agent(path)
        if agent is None:
            _start_agent()
        else:
            answer = _ask(agent, run)
            if answer == WELCOME:
                return agent
            agent.close()
            if answer not in (ENDING, b""):
                raise OSError(answer.decode(errors="replace").strip())
            time.sleep(_PAUSE_S)
        if time.monotonic() > deadline:
            raise TimeoutError(f"it has not answered within {_TIMEOUT_S:g} s")


def _ask(agent: socket.socket, run: str) -> bytes:
    """Its answer; empty if it closes silently."""
    agent.settimeout(_TIMEOUT_S)
    answer = b""
    with contextlib.suppress(ConnectionError):
        agent.sendall(run.encode())
        while not answer.endswith(b"\n") and len(answer) < _MOST_WORD_BYTES:
            # One byte at a time, since frames follow.
            if not (byte := agent.recv(1)):
                break
            answer += byte
    agent.settimeout(None)
    return answer


def _start_agent() -> None:
    """Start the agent in a session of its own, so that it outlives the parent of this process."""
    words = python_command(sys.executable, "remote.detached_agent", sys.argv[1:])
    with Popen(words, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True) as agent:
        assert agent.stdout is not None
        word = agent.stdout.readline()
        agent.returncode = 0  # it is not waited for
    if word == BUSY:
        time.sleep(_PAUSE_S)
    elif word != READY:
        raise OSError(word.decode(errors="replace").strip() or "it has ended at once")


def copy(connected: socket.socket) -> None:
    """From standard input to ``connected``, and from there to standard output, until one ends."""
    ways = {0: connected.fileno(), connected.fileno(): 1}
    while True:
        for source in select.select(list(ways), [], [])[0]:
            data = os.read(source, _COPY_BYTES)
            if not data:
                return
            while data:
                data = data[os.write(ways[source], data) :]
