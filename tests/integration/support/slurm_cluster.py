"""A Slurm cluster of one node, with all its files in one folder; the test starts and ends it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "sbatch")
START_TIMEOUT_S = 120
TASKS = 4

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
NodeName={host} NodeAddr=127.0.0.1 CPUs={tasks} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def lack() -> str:
    """The reason why no cluster can run here; empty if it can."""
    missing = [name for name in PROGRAMS if program(name) is None]
    if missing:
        return f"Slurm is not installed (no {', '.join(missing)})"
    return "" if os.geteuid() == 0 else "slurmd needs root"


class SlurmCluster:
    """``with SlurmCluster(folder) as cluster: cluster.run("srun", "-n", "2", ...)``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> SlurmCluster:
        self._write_files()
        munge = [f"--{name}={self._folder}/munge.{name.split('-')[0]}" for name in _MUNGE_FILES]
        try:
            self._start("munged", "--foreground", "--force", *munge)
            self._wait(lambda: (self._folder / "munge.socket").exists())
            self._start("slurmctld", "-D")
            self._start("slurmd", "-D", "-N", _host())
            self._wait(self._is_idle)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        name, *arguments = map(str, words)
        return subprocess.run(
            [program(name) or name, *arguments],
            env={**self.environment, **environment},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
        )

    def _write_files(self) -> None:
        for name in ("state", "spool"):
            (self._folder / name).mkdir()
        self._folder.chmod(0o755)
        key = self._folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(64))
        text = CONFIGURATION.format(
            host=_host(), ports=_free_ports(2), folder=self._folder, tasks=TASKS
        )
        (self._folder / "slurm.conf").write_text(text)

    def _start(self, name: str, *words: str) -> None:
        with open(self._folder / f"{name}.out", "wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    [str(program(name)), *words],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            )

    def _is_idle(self) -> bool:
        return self.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle"

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; the daemons give no other signal."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = [path.read_text()[-2000:] for path in self._folder.glob("*.[ol][uo]*")]
                raise RuntimeError(f"Slurm did not start; {ended} ended:\n" + "\n".join(logs))
            time.sleep(0.05)

    def _end(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


_MUNGE_FILES = ("socket", "key-file", "pid-file", "log-file", "seed-file")


def _host() -> str:
    return os.uname().nodename.partition(".")[0]


def _free_ports(count: int) -> list[int]:
    """Slurm cannot choose ports by itself."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
