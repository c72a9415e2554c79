"""Other hosts that are this machine: a fake ssh, which runs the command here.

It gives the command a new environment, like sshd, and no terminal. A file with the name of a host
holds a shell line that runs before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
from launching import run

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
    """``environ`` makes a launcher use them; any name that no machine has is such a host."""

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
        """A shell line that the host runs first; it may set ``$settings`` or change ``$*``."""
        (self.folder / hostname).write_text(f"{line}\n")

    @property
    def asked(self) -> list[str]:
        """The arguments of each ssh."""
        return (self.folder / "asked").read_text().splitlines()

    def processes(self) -> list[psutil.Process]:
        """All processes of these hosts, except zombies."""
        mine = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("FAKE_FOLDER") == str(self.folder):
                    mine.append(process)
            except psutil.Error:
                continue
        return [p for p in mine if p.pid != os.getpid()]

    def command_lines(self) -> dict[psutil.Process, list[str]]:
        """The arguments of each of them that still lives."""
        found = {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                found[process] = process.cmdline()
        return found

    def assert_empty(self) -> None:
        """All of them end within a deadline; the rest is killed."""
        deadline = time.monotonic() + 30
        while left := self.processes():
            if time.monotonic() > deadline:
                break
            psutil.wait_procs(left, timeout=1)
        for process in left:
            process.send_signal(signal.SIGKILL)
        assert not left


def launch(fake: FakeHosts, *arguments: str, **options: object) -> tuple[int, str, str]:
    """Run the launcher with these hosts."""
    return run(*arguments, **{"env": fake.environ, **options})
