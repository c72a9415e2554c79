"""An ssh server on every host of a network, with temporary keys.

Each host reaches the others with ``ssh -p PORT -i KEY HOST`` (``options``) without a question. No
keys, known hosts or configuration of a user are read or written.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import psutil
from network import Host, Network

__all__ = ["PORT", "SshServers", "missing_ssh"]

PORT = 2222
_SERVER = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/bin") or ""
_START_TIMEOUT_S = 120.0

_SERVER_CONFIG = """
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
MaxStartups 100
"""
_CLIENT_CONFIG = """
UserKnownHostsFile /dev/null
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking no
BatchMode yes
LogLevel ERROR
"""


def missing_ssh() -> str:
    """Why there can be no ssh servers here; empty if there can."""
    absent = [tool for tool in ("ssh", "ssh-keygen") if shutil.which(tool) is None]
    absent += [] if _SERVER else ["sshd"]
    return f"{', '.join(absent)} not found: apt-get install openssh-server" if absent else ""


class SshServers:
    """Servers on all hosts of ``network``, until ``close`` or until its hosts end."""

    def __init__(self, network: Network) -> None:
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ssh-")))
        self.key = self._folder / "key"
        self.options = ("-p", str(PORT), "-i", str(self.key))
        try:
            self._start(network)
        except BaseException:
            self.close()
            raise

    def log_of(self, host: Host) -> str:
        """The log of the host's server so far."""
        return (self._folder / f"{host.name}.log").read_text()

    def close(self) -> None:
        """End the servers and delete the keys."""
        self._stack.close()

    def __enter__(self) -> SshServers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, network: Network) -> None:
        for name in ("key", "host_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        config, client_config = self._folder / "sshd_config", self._folder / "ssh_config"
        config.write_text(_SERVER_CONFIG.format(port=PORT, folder=self._folder))
        client_config.write_text(_CLIENT_CONFIG)
        for host in network.hosts:
            host.run(["mount", "--bind", str(client_config), "/etc/ssh/ssh_config"])
            with (self._folder / f"{host.name}.log").open("w") as log:
                server = host.start([_SERVER, "-D", "-e", "-f", str(config)], stderr=log)
            self._stack.callback(server.wait, _START_TIMEOUT_S)
            self._stack.callback(_end_server, host)
        deadline = time.monotonic() + _START_TIMEOUT_S
        for host in network.hosts:
            while "Server listening" not in self.log_of(host):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no ssh server on {host.name}: {self.log_of(host)}")
                time.sleep(0.01)


def _end_server(host: Host) -> None:
    for process in host.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # a connection's process has ended
            if process.name() == "sshd":
                process.kill()
