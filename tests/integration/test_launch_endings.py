"""The ends of jobs of the real launcher; nothing is left behind."""

from __future__ import annotations

import os
import pty
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fake_hosts import FakeHosts
from launching import (
    FAMILY,
    LAUNCHER,
    STUBBORN,
    TIMEOUT_S,
    assert_gone,
    default_signals,
    pids_told,
    run,
    start,
)

pytestmark = pytest.mark.usefixtures("no_child_is_left")


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_launcher() -> None:
    script = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print('child', child.pid)\n"
        "import os; os._exit(0)\n"
    )
    status, out, _ = run("-np", "1", sys.executable, "-c", script)
    assert status == 0
    # It has left the session, so it may outlive a successful job: end it here.
    os.killpg(int(out.split()[-1]), signal.SIGKILL)


def test_what_a_finished_worker_left_in_its_group_is_ended() -> None:
    status, out, _ = run("-np", "1", "sh", "-c", 'sleep 1000 & echo "child $!"')
    assert status == 0
    assert_gone([int(out.split()[-1])])


def test_a_rank_that_had_exited_with_0_before_a_failure_is_named(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, psutil, sys\n"
        "mark = pathlib.Path(sys.argv[1])\n"
        "if os.environ['HOROVOD_RANK'] == '0':\n"
        "    mark.with_suffix('.new').write_text(str(os.getpid()))\n"
        "    mark.with_suffix('.new').rename(mark)\n"
        "    sys.exit()\n"
        "while not mark.exists():\n"
        "    pass\n"
        "while psutil.pid_exists(int(mark.read_text())):  # until the launcher knows\n"
        "    pass\n"
        "sys.exit(3)\n"
    )
    words = (sys.executable, "-c", script, str(tmp_path / "mark"))
    status, _, err = run("-np", "2", *words)
    assert status == 1
    assert "horovodrun: rank 0 had exited with code 0 by then\n" in err
    assert err.splitlines()[-2:] == ["Process name: 1", "Exit code: 3"]


def test_a_program_that_spawned_children_run_again_is_told_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing\n"
        "import horovod.numpy as hvd\n"
        "hvd.init()\n"
        "hvd.barrier()\n"
        "child = multiprocessing.get_context('spawn').Process(target=print)\n"
        "child.start()\n"
        "child.join()\n"
        "raise SystemExit(child.exitcode)\n"
    )
    status, _, err = run("-np", "2", sys.executable, str(program))
    assert status == 1
    assert re.search(r"two processes are rank \d: pids .*below if __name__ == '__main__'", err)


def test_an_exit_code_is_reported_and_the_others_are_ended() -> None:
    script = f"if [ $HOROVOD_RANK = 1 ]; then exit 3; fi; {FAMILY}"
    status, out, err = run("-np", "3", "sh", "-c", script)
    assert status == 1
    lines = err.splitlines()
    assert lines[-3].startswith("Horovod detected that one or more processes exited with non-zero")
    assert lines[-2:] == ["Process name: 1", "Exit code: 3"]
    assert "rank 1 on localhost (pid " in lines[-3]
    assert "Traceback" not in err
    assert_gone([int(line.split()[-1]) for line in out.splitlines()])


def test_a_signal_is_reported_by_name() -> None:
    script = "if [ $HOROVOD_RANK = 0 ]; then kill -SEGV $$; fi; sleep 1000"
    status, _, err = run("-np", "2", "sh", "-c", script)
    assert status == 1
    assert "was ended by SIGSEGV" in err
    assert err.endswith("Process name: 0\nExit code: -11\n")


def test_the_first_failure_is_the_one_reported() -> None:
    script = 'if [ $HOROVOD_RANK = 2 ]; then exit 7; fi; trap "exit 9" TERM; sleep 1000 & wait'
    status, _, err = run("-np", "3", "sh", "-c", script)
    assert status == 1
    assert err.endswith("Process name: 2\nExit code: 7\n")


# On this machine, and with agents in between; the fake hosts must be empty at the end.
both_places = pytest.mark.parametrize(
    "where", [(), ("-H", "localhost:1,host-a:1,host-b:1")], ids=["here", "hosts"]
)


@both_places
def test_a_process_that_ignores_sigterm_is_killed(where: tuple[str, ...], fake: FakeHosts) -> None:
    script = f"if [ $HOROVOD_RANK = 0 ]; then read line; exit 1; fi; {STUBBORN}"
    arguments = ("-np", "2", *where, "sh", "-c", script)
    with start(*arguments, env=fake.environ, stdin=subprocess.PIPE) as process:
        pids = pids_told(process, 1)
        _, err = process.communicate(b"go\n", timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert b"killing rank 1 on host-a" in err or not where
    assert b"did not end within 5 s of SIGTERM" in err
    assert_gone(pids)


@both_places
@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_to_the_launcher_leaves_nothing(
    signum: signal.Signals, status: int, where: tuple[str, ...], fake: FakeHosts
) -> None:
    with start("-np", "3", *where, "sh", "-c", FAMILY, env=fake.environ) as process:
        pids = pids_told(process, 6)
        process.send_signal(signum)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == status
    assert f"{signum.name}: ending 3 processes".encode() in err
    assert b"Traceback" not in err
    assert_gone(pids)


@both_places
def test_a_second_ctrl_c_kills_at_once(where: tuple[str, ...], fake: FakeHosts) -> None:
    with start("-np", "2", *where, "sh", "-c", STUBBORN, env=fake.environ) as process:
        pids = pids_told(process, 2)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert b"once more kills" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert b"did not end before a second signal (SIGINT)" in err
    assert_gone(pids)


@both_places
@pytest.mark.parametrize(("script", "count"), [(FAMILY, 6), (STUBBORN, 3)])
def test_a_killed_launcher_leaves_nothing(
    script: str, count: int, where: tuple[str, ...], fake: FakeHosts
) -> None:
    with start("-np", "3", *where, "sh", "-c", script, env=fake.environ) as process:
        pids = pids_told(process, count)
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
        assert_gone(pids)


def test_ctrl_c_reaches_descendants_that_have_left_their_session() -> None:
    script = 'setsid sleep 1000 & echo "child $!"; wait'
    with start("-np", "2", "sh", "-c", script) as process:
        pids = pids_told(process, 2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert_gone(pids)


def test_a_stopped_worker_is_ended_too() -> None:
    with start("-np", "1", "sh", "-c", 'echo "self $$"; kill -STOP $$; sleep 1000') as process:
        pids = pids_told(process, 1)
        while psutil.Process(pids[0]).status() != psutil.STATUS_STOPPED:
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 143
    assert_gone(pids)


def test_a_killed_process_group_of_the_launcher_leaves_nothing() -> None:
    with start("-np", "2", "sh", "-c", FAMILY, start_new_session=True) as process:
        pids = pids_told(process, 4)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        assert_gone(pids)


def test_ctrl_c_in_a_terminal() -> None:
    """The launcher in the foreground of a pseudo-terminal, which gets ^C as a byte."""
    pid, terminal = pty.fork()
    if pid == 0:
        default_signals()
        os.execv(sys.executable, [*LAUNCHER, "-np", "2", "sh", "-c", FAMILY])
    try:
        seen = b""
        while seen.count(b"self") < 2 or seen.count(b"child") < 2:
            seen += os.read(terminal, 4096)
        pids = [int(line.split()[-1]) for line in seen.splitlines() if line.strip()]
        os.write(terminal, b"\x03")
        with selectors.DefaultSelector() as selector:
            selector.register(terminal, selectors.EVENT_READ)
            while selector.select(TIMEOUT_S):
                try:
                    seen += os.read(terminal, 4096)
                except OSError:
                    break
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    finally:
        os.close(terminal)
    assert b"SIGINT" in seen
    assert_gone(pids)
