"""Other hosts that are this machine: a program called ssh, which runs the command right here.

It gives the command an environment of its own, as sshd would, and no terminal. What a host is to do
before that is a line of shell in a file with its name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil

_SSH = """\
#!/bin/sh
printf '%s\\n' "$*" >> {folder}/asked
while :; do case $1 in -o | -p | -i) shift 2 ;; *) break ;; esac; done
host=$1 settings=
shift
[ -e "{folder}/$host" ] && . "{folder}/$host"
exec env -i PATH=/usr/bin:/bin FAKE_HOST="$host" FAKE_FOLDER={folder} \
    SSH_CONNECTION="127.0.0.1 4242 127.0.0.1 22" $settings /bin/sh -c "$*"
"""


class FakeHosts:
    """``environ`` is what a launcher needs to find them; any name that no machine has will do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "ssh"
        self.program.write_text(_SSH.format(folder=folder))
        self.program.chmod(0o755)
        self.environ = {
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "FAKE_FOLDER": str(folder),
        }

    def first(self, hostname: str, line: str) -> None:
        """What a host does before it runs the command, ``$*``, with ``$settings`` in front."""
        (self.folder / hostname).write_text(f"{line}\n")

    @property
    def asked(self) -> list[str]:
        """The words that each ssh was given."""
        return (self.folder / "asked").read_text().splitlines()

    def processes(self) -> list[psutil.Process]:
        """All that was started for these hosts, except for zombies."""
        mine = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("FAKE_FOLDER") == str(self.folder):
                    mine.append(process)
            except psutil.Error:
                continue
        return [p for p in mine if p.pid != os.getpid()]

    def command_lines(self) -> dict[psutil.Process, list[str]]:
        """The words of each of them that has not ended meanwhile."""
        found = {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                found[process] = process.cmdline()
        return found

    def assert_empty(self) -> None:
        """All of it ends within a deadline; what does not is killed."""
        deadline = time.monotonic() + 30
        while left := self.processes():
            if time.monotonic() > deadline:
                break
            psutil.wait_procs(left, timeout=1)
        for process in left:
            process.send_signal(signal.SIGKILL)
        assert not left
