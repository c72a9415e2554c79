"""The words that reach another host, and the advice when they do not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from horovod.launch.model.ssh import SshOptions, advice, agent_command, remote_words

PLAIN = [
    *("ssh", "-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no"),
    *("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8"),
]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (SshOptions(), [*PLAIN, "node", "run it"]),
        (SshOptions(2222), [*PLAIN, "-p", "2222", "node", "run it"]),
        (SshOptions(None, "a key"), [*PLAIN, "-i", "a key", "node", "run it"]),
    ],
)
def test_words(options: SshOptions, words: list[str]) -> None:
    assert remote_words("node", "run it", options, {}) == words
    environ = {"OMPI_MCA_plm_rsh_agent": "/usr/bin/rsh"}
    assert remote_words("node", "run it", options, environ) == words


def test_kubexec_gets_host_and_command_only() -> None:
    environ = {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}
    words = remote_words("pod-1", "run it", SshOptions(22, "key"), environ)
    assert words == ["/etc/mpi/kubexec.sh", "pod-1", "run it"]


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)


def test_the_command_survives_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s "here" $HOME'
    folder.mkdir()
    program = tmp_path / "a python"
    program.write_text('#!/bin/sh\npwd\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    done = shell(agent_command(str(folder), str(program), ["-c", "import x; 'y'", "$z"]))
    assert done.stdout == f"{folder}\n-c|import x; 'y'|$z|"


def test_another_python_will_do(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\necho $0\n")
    (tmp_path / "python3").chmod(0o755)
    command = agent_command("/none", "/none/python", ["-c", "x"])
    assert shell(f"PATH={tmp_path}; {command}").stdout == f"{tmp_path}/python3\n"
    none = shell(f"PATH=/none; {command}")
    assert none.returncode == 127
    assert none.stderr == "there is neither /none/python nor python3 nor python\n"


@pytest.mark.parametrize(
    ("exit_code", "lines", "text"),
    [
        (255, "", "'ssh node true' has to work without a question"),
        (127, "", "install Python and horovod there"),
        (1, "ModuleNotFoundError: No module named 'horovod'", "install this version of horovod"),
        (None, "", "does 'ssh node true' come back at once"),
        (0, "", "A login script there must not end the shell"),
    ],
)
def test_advice(
    exit_code: int | None, lines: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert text in advice(["ssh", "node", "exec /bin/sh"], exit_code, lines)


def test_advice_without_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    assert "install ssh here" in advice(["ssh", "node", "exec /bin/sh"], None, "")
