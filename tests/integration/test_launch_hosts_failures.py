"""Failures of jobs on several hosts; nothing is left on any host."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from fake_hosts import FakeHosts, launch
from launching import FAMILY, TIMEOUT_S, run, start

pytestmark = pytest.mark.usefixtures("no_child_is_left")

HOSTS = "localhost:1,host-a:1,host-b:1"


@contextmanager
def running(
    fake: FakeHosts, *arguments: str, **options: object
) -> Iterator[subprocess.Popen[bytes]]:
    with start(*arguments, env=fake.environ, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def workers_told(process: subprocess.Popen[bytes], count: int) -> list[psutil.Process]:
    """The workers among the processes that print their pid, once ``count`` have."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    pids = [int(line.split()[-1]) for line in lines if b"self" in line]
    return [psutil.Process(pid) for pid in pids]


def agent_of(worker: psutil.Process) -> psutil.Process:
    agent = worker.parent()
    assert agent is not None
    assert "horovod.launch.remote.agent" in " ".join(agent.cmdline())
    return agent


def test_a_failure_elsewhere_ends_the_others(fake: FakeHosts) -> None:
    script = f"if [ $HOROVOD_RANK = 2 ]; then exit 3; fi; {FAMILY}"
    status, _, err = launch(fake, "-np", "3", "-H", HOSTS, "sh", "-c", script)
    assert status == 1
    lines = err.splitlines()
    assert lines[-3].startswith("Horovod detected that one or more processes exited with non-zero")
    assert "rank 2 on host-b (pid " in lines[-3]
    assert lines[-2:] == ["Process name: 2", "Exit code: 3"]


def test_a_failure_here_ends_the_others(fake: FakeHosts) -> None:
    script = f"if [ $HOROVOD_RANK = 0 ]; then kill -SEGV $$; fi; {FAMILY}"
    status, _, err = launch(fake, "-np", "3", "-H", HOSTS, "sh", "-c", script)
    assert status == 1
    assert err.endswith("Process name: 0\nExit code: -11\n")


@pytest.mark.parametrize(
    ("word", "status", "text"),
    [
        ("no-such-command", 127, "command not found in PATH on host-a: no-such-command"),
        ("/etc/passwd", 126, "/etc/passwd: not executable on host-a"),
    ],
)
def test_a_command_that_cannot_run(word: str, status: int, text: str, fake: FakeHosts) -> None:
    found, out, err = launch(fake, "-np", "2", "-H", "host-a:2", word)
    assert (found, out) == (status, "")
    assert text in err


def test_a_launcher_killed_with_all_that_it_can_see_leaves_nothing(fake: FakeHosts) -> None:
    """The launcher's own watchdog and both connections end with it."""
    with running(fake, "-np", "2", "-H", "host-a:1,host-b:1", "sh", "-c", FAMILY) as process:
        workers_told(process, 4)  # so every agent's watchdog knows its worker
        mine = psutil.Process(process.pid).children()
        process.kill()
        for child in mine:
            child.kill()
        process.communicate(timeout=TIMEOUT_S)


def test_an_agent_that_is_killed_is_reported_and_leaves_nothing(fake: FakeHosts) -> None:
    with running(fake, "-np", "3", "-H", HOSTS, "sh", "-c", FAMILY) as process:
        (worker,) = [w for w in workers_told(process, 6) if on_host(w, "host-b")]
        agent_of(worker).kill()
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    text = err.decode()
    assert "host-b: ssh was ended by SIGKILL; ending 2 processes" in text
    assert "the connection to host-b (rank 2), which ended: ssh was ended by SIGKILL" in text
    assert text.endswith("Process name: 2\nExit code: -9\n")


@pytest.mark.parametrize("victim", ["ssh", "agent"])
def test_a_connection_that_is_cut(victim: str, fake: FakeHosts) -> None:
    """Here ssh is a separate process that outlives the agent and does not end it."""
    fake.first("host-b", '/bin/sh -c "$*"; exit $?')
    with running(fake, "-np", "2", "-H", "host-a:1,host-b:1", "sh", "-c", FAMILY) as job:
        (worker,) = [w for w in workers_told(job, 4) if on_host(w, "host-b")]
        agent = agent_of(worker)
        ssh = agent.parent()
        assert ssh is not None
        (ssh if victim == "ssh" else agent).kill()
        _, err = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 1
    end = "was ended by SIGKILL" if victim == "ssh" else "exited with code 137"
    assert f"the connection to host-b (rank 1), which ended: ssh {end}".encode() in err


def on_host(worker: psutil.Process, hostname: str) -> bool:
    return worker.environ().get("HOROVOD_HOSTNAME") == hostname


def test_an_agent_that_is_asked_to_end_ends_its_workers(fake: FakeHosts) -> None:
    with running(fake, "-np", "2", "-H", "host-a:2", "sh", "-c", FAMILY) as process:
        agent_of(workers_told(process, 4)[0]).terminate()
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert b"on host-a" in err
    assert b"was ended by SIGTERM" in err


def test_hosts_that_cannot_be_reached_are_all_named(fake: FakeHosts) -> None:
    refused = "ssh: connect to host $host port 22: Connection refused"
    for name in ("host-a", "host-c"):
        fake.first(name, f'echo "Warning: added"; echo "{refused}" >&2; exit 255')
    hosts = "localhost:1,host-a:1,host-b:1,host-c:1"
    status, out, err = launch(fake, "-np", "4", "-H", hosts, "echo", "never")
    assert (status, out) == (1, "")
    assert err.startswith("horovodrun: could not connect to some hosts via ssh; nothing has been")
    for name in ("host-a", "host-c"):
        assert f"  {name}: ssh exited with code 255\n    ssh -o PasswordAuthentication=no" in err
        assert f"| ssh: connect to host {name} port 22: Connection refused" in err
        assert f"{name} true' has to work without a question" in err
    assert "host-b" not in err
    assert "Traceback" not in err


def test_a_host_that_is_about_to_start_its_ssh_server(fake: FakeHosts) -> None:
    refused = "{ echo 'Connection refused' >&2; exit 255; }"
    fake.first("host-a", f"test $(wc -l < {fake.folder}/asked) -gt 2 || {refused}")
    status, out, err = launch(fake, "-np", "1", "-H", "host-a:1", "--verbose", "echo", "here")
    assert (status, out) == (0, "[0]<stdout>:here\n")
    assert err.count("host-a: ssh exited with code 255; trying again") == 2


def test_a_host_that_hangs_is_named_at_the_start_timeout(fake: FakeHosts) -> None:
    fake.first("host-b", "echo waiting >&2; exec sleep 1000")
    arguments = ("-np", "3", "-H", HOSTS, "--start-timeout", "10", "echo", "never")
    status, out, err = launch(fake, *arguments)
    assert (status, out) == (1, "")
    assert "could not connect to some hosts via ssh within 10 s (--start-timeout):" in err
    assert "  host-b: no answer\n" in err
    assert "    | waiting\n" in err
    assert "host-a" not in err


def test_what_login_scripts_print_is_no_harm(fake: FakeHosts) -> None:
    fake.first("host-a", "echo 'Welcome to $host'; head -c 5000 /dev/zero; echo >&2 'Debian'")
    status, out, err = launch(fake, "-np", "1", "-H", "host-a:1", "echo", "here")
    assert (status, out, err) == (0, "[0]<stdout>:here\n", "")


def test_a_login_script_that_never_stops_printing(fake: FakeHosts) -> None:
    fake.first("host-a", "exec yes spam")
    status, out, err = launch(fake, "-np", "1", "-H", "host-a:1", "echo", "never")
    assert (status, out) == (1, "")
    assert "host-a: sent what no agent of this version sends: " in err
    assert "| spam\n" in err


def test_a_host_without_python(fake: FakeHosts) -> None:
    fake.first(
        "host-a",
        'settings=PATH=/none; set -- "$(echo "$*" | sed \'s:[^ ]*/bin/python:/none/python:g\')"',
    )
    status, _, err = launch(fake, "-np", "1", "-H", "host-a:1", "echo", "never")
    assert status == 1
    assert "host-a: ssh exited with code 127" in err
    assert "nor python3 nor python" in err
    assert "install Python and horovod there" in err


def test_a_host_without_horovod(fake: FakeHosts) -> None:
    fake.first("host-a", 'set -- "$(echo "$*" | sed \'s:remote.agent:remote.none:\')"')
    status, _, err = launch(fake, "-np", "1", "-H", "host-a:1", "echo", "never")
    assert status == 1
    assert "| ModuleNotFoundError: No module named 'horovod.launch.remote.none'" in err
    assert "install this version of horovod there" in err


def test_a_connection_that_passes_no_standard_input_on(fake: FakeHosts) -> None:
    fake.first("host-a", "exec < /dev/null")
    status, out, err = launch(fake, "-np", "1", "-H", "host-a:1", "echo", "never")
    assert (status, out) == (1, "")
    assert "host-a" in err
    assert "standard input has ended before a plan came" in err


def test_no_ssh_at_all(fake: FakeHosts, tmp_path: Path) -> None:
    environ = {**fake.environ, "PATH": str(tmp_path)}
    status, _, err = run("-np", "1", "-H", "host-a:1", "echo", "never", env=environ)
    assert status == 1
    assert "host-a: cannot run ssh: No such file or directory" in err


def test_ctrl_c_while_hosts_are_asked(fake: FakeHosts) -> None:
    fake.first("host-b", "exec sleep 1000")
    arguments = ("-np", "3", "-H", HOSTS, "--verbose", "echo", "never")
    with running(fake, *arguments) as process:
        assert process.stderr is not None
        while b"host-a has answered" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert out == b""


def test_an_interface_that_does_not_exist(fake: FakeHosts) -> None:
    arguments = ("-np", "2", "-H", "localhost:1,host-a:1", "--network-interfaces", "nic9")
    status, out, err = launch(fake, *arguments, "echo", "never")
    assert (status, out) == (1, "")
    assert "network interface 'nic9': expected one of this machine's that are up: lo" in err
