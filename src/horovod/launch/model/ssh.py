"""How a command is run on another host, and what to try when that fails. Pure functions."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

_OPTIONS = (
    "PasswordAuthentication=no",
    "StrictHostKeyChecking=no",
    "ConnectTimeout=10",
    # A host that disappears silently counts as lost after two minutes.
    "ServerAliveInterval=15",
    "ServerAliveCountMax=8",
)
# How Kubeflow's MPI operator names the program that takes the place of ssh.
_AGENT_VARIABLE = "OMPI_MCA_plm_rsh_agent"
_KUBEXEC = "kubexec.sh"
_SSH_FAILED = 255
_NOT_FOUND = 127


@dataclass(frozen=True)
class SshOptions:
    """The user's options for ssh; None leaves it to ssh's own configuration."""

    port: int | None = None
    identity_file: str | None = None

    @property
    def words(self) -> list[str]:
        """The options as ssh takes them."""
        port = [] if self.port is None else ["-p", str(self.port)]
        return port if self.identity_file is None else [*port, "-i", self.identity_file]


def remote_words(
    hostname: str, command: str, options: SshOptions, environ: Mapping[str, str]
) -> list[str]:
    """The words that run ``command``, a line for a shell, on ``hostname`` with this stdin."""
    replacement = environ.get(_AGENT_VARIABLE, "")
    if PurePath(replacement).name == _KUBEXEC:
        return [replacement, hostname, command]
    own = [word for option in _OPTIONS for word in ("-o", option)]
    return ["ssh", *own, *options.words, hostname, command]


def agent_command(directory: str, python: str, arguments: Sequence[str]) -> str:
    """The line that starts an agent: in ``directory`` if that exists, by ``python`` if that does.

    For any login shell: /bin/sh does the work.
    """
    words = shlex.join(arguments)
    script = (
        f"cd {shlex.quote(directory)} 2>/dev/null; "
        f"for python in {shlex.quote(python)} python3 python; do "
        f'command -v "$python" >/dev/null 2>&1 && exec "$python" {words}; done; '
        f"echo {shlex.quote(f'there is neither {python} nor python3 nor python')} >&2; exit 127"
    )
    return f"exec /bin/sh -c {shlex.quote(script)}"


def advice(words: Sequence[str], exit_code: int | None, last_lines: str) -> str:
    """Advice when ``words`` did not start an agent; ``exit_code`` is None if it hangs."""
    *reach, _ = words
    by_hand = f"{shlex.join([*reach, 'true'])}"
    if shutil.which(words[0]) is None:
        return f"install {words[0]} here; Debian and Ubuntu: apt-get install openssh-client"
    if "No module named 'horovod" in last_lines:
        return "install this version of horovod there, for the Python that it was started with"
    if exit_code is None:
        return f"is the host up, and does '{by_hand}' come back at once, without a question?"
    if exit_code == _NOT_FOUND:
        return "install Python and horovod there, at the same place as here"
    if exit_code == _SSH_FAILED:
        return f"'{by_hand}' has to work without a question: name, port, key, sshd?"
    return f"'{by_hand}' works? A login script there must not end the shell"
