"""``horovodrun -H`` over real ssh: where processes run, how a job fails, and what it leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from lab import ROOT, Lab, wait_until
from ssh_servers import SshServers
from tutorials import DOCS, write_files

DIGITS = str(ROOT / "examples" / "pytorch" / "digits.py")
STEADY = str(Path(__file__).with_name("workers") / "steady.py")


class Launcher:
    """``horovodrun`` on host0, whose options lead to all hosts."""

    def __init__(self, lab: Lab, ssh: SshServers) -> None:
        self._lab = lab
        self._ssh = ssh

    def start(self, hosts: str, *words: str) -> subprocess.Popen[str]:
        """Start ``words``, options first, on these hosts."""
        command = [sys.executable, "-m", "horovod.runner.launch", *self._ssh.options, "-H", hosts]
        return self._lab.hosts[0].start(
            [*command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **self._lab.environment()},
        )

    def run(self, hosts: str, *words: str) -> tuple[int, str, str]:
        """Exit status, output and errors."""
        with self.start(hosts, *words) as process:
            try:
                out, err = process.communicate(timeout=500)
            finally:
                process.kill()
        return process.returncode, out, err


@pytest.fixture
def launcher(lab: Lab, ssh: SshServers) -> Iterator[Launcher]:
    """Afterwards only the ssh servers may run on the hosts."""
    yield Launcher(lab, ssh)
    wait_until(lambda: not leftovers(lab), f"left: {leftovers(lab)}")


def leftovers(lab: Lab) -> list[str]:
    """Processes on the hosts, without ssh servers and zombies."""
    left = []
    for host in lab.hosts:
        for process in host.processes():
            try:
                if process.name() != "sshd" and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"{host.name}: {' '.join(process.cmdline())}")
            except psutil.NoSuchProcess:
                continue
    return left


def test_digits_and_its_report(launcher: Launcher, tmp_path: Path) -> None:
    report = tmp_path / "out.html"
    words = ["-np", "4", "--report", str(report), sys.executable, DIGITS]
    status, out, err = launcher.run("host0:2,host1:1,host2:1", *words)
    assert status == 0, out + err
    assert "[0]<stdout>:weights are bitwise equal on all 4 rank(s)" in out
    text = re.sub("<[^>]*>", " ", report.read_text())
    assert re.search(r"host0\s+2\s+ranks 0, 1\s+host1\s+1\s+rank 2\s+host2\s+1\s+rank 3", text)


def test_every_rank_is_where_it_belongs(launcher: Launcher) -> None:
    script = 'echo "$HOROVOD_RANK $HOROVOD_LOCAL_RANK $(uname -n) $HOROVOD_HOSTNAME $(pwd)"'
    status, out, err = launcher.run("host1:2,host0:1,host2:1", "-np", "4", "sh", "-c", script)
    assert status == 0, err
    lines = sorted(line.partition(":")[2] for line in out.splitlines())
    here = os.getcwd()
    assert lines == [
        f"0 0 host1 host1 {here}",
        f"1 1 host1 host1 {here}",
        f"2 0 host0 host0 {here}",
        f"3 0 host2 host2 {here}",
    ]


def test_the_tutorial(launcher: Launcher, tmp_path: Path) -> None:
    page = DOCS / "tutorials" / "two-machines.md"
    write_files(page, tmp_path)
    text = page.read_text()
    assert "\nhorovodrun -np 4 -H node-1:2,node-2:2 python where.py\n" in text
    program = [sys.executable, str(tmp_path / "where.py")]
    status, out, err = launcher.run("host0:2,host1:2", "-np", "4", *program)
    assert status == 0, err
    assert out
    assert f"\n    {out}" in text


def test_a_failure_names_the_host(launcher: Launcher) -> None:
    script = 'test "$HOROVOD_RANK" = 1 && { echo "no such data" >&2; exit 7; }; sleep 1000'
    status, _, err = launcher.run("host0:1,host1:1,host2:1", "-np", "3", "sh", "-c", script)
    assert status == 1
    assert "[1]<stderr>:no such data" in err
    assert "host1" in err
    assert err.endswith("Process name: 1\nExit code: 7\n")


def test_a_host_that_cannot_be_reached(lab: Lab, launcher: Launcher) -> None:
    lab.network.disconnect(lab.hosts[2])
    words = ["--start-timeout", "10", "-np", "3", "true"]
    status, _, err = launcher.run("host0:1,host1:1,host2:1", *words)
    assert status == 1
    assert "host2" in err
    assert "host1" not in err.splitlines()[-1]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_launcher(
    lab: Lab, launcher: Launcher, signum: signal.Signals
) -> None:
    script = 'sleep 1000 & : > "$NOTES/ready.$HOROVOD_RANK"; sleep 1000'
    process = launcher.start("host0:2,host1:1,host2:1", "-np", "4", "sh", "-c", script)
    with process:
        wait_until(
            lambda: (
                all((lab.notes / f"ready.{rank}").exists() for rank in range(4))
                or process.poll() is not None
            ),
            "the ranks did not start",
        )
        assert process.poll() is None, process.communicate()
        (horovodrun,) = psutil.Process(process.pid).children()
        horovodrun.send_signal(signum)
        process.communicate(timeout=500)
    wait_until(lambda: not leftovers(lab), f"left: {leftovers(lab)}")


def test_the_secret_is_on_no_command_line(lab: Lab, launcher: Launcher) -> None:
    words = ["-np", "3", sys.executable, STEADY, "64", "300"]
    with launcher.start("host0:1,host1:1,host2:1", *words) as process:
        secrets, seen = set(), set()
        while process.poll() is None:
            for each in everything_on(lab):
                variables, command = each
                seen.add(command)
                secrets |= {variables.get("_HOROVOD_SECRET_KEY", "")} - {""}
        out, err = process.communicate(timeout=500)
    assert process.returncode == 0, out + err
    assert len(secrets) == 1
    (secret,) = secrets
    assert not [command for command in seen if secret in command]
    assert secret not in out + err


def everything_on(lab: Lab) -> list[tuple[dict[str, str], str]]:
    """Environment and command line of all processes on all hosts."""
    found = []
    for host in lab.hosts:
        for process in host.processes():
            try:
                found.append((process.environ(), " ".join(process.cmdline())))
            except psutil.Error:
                continue
    return found
