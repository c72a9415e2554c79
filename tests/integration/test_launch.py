"""The real launcher with real processes: output, exit statuses, and that nothing is left behind."""

from __future__ import annotations

import array
import fcntl
import json
import os
import pty
import selectors
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

LAUNCHER = [sys.executable, "-m", "horovod.runner.launch"]
TIMEOUT_S = 90

# Tells its own pid and that of a child, then waits for ever.
FAMILY = 'sleep 1000 & echo "child $!"; echo "self $$"; wait'
STUBBORN = "trap '' TERM; echo \"self $$\"; while :; do sleep 1; done"


def default_signals() -> None:
    """A test runner started in the background may have left SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start(*words: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [*LAUNCHER, *words],
        **{
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "preexec_fn": default_signals,
            **options,
        },
    )


def run(*words: str, **options: object) -> tuple[int, str, str]:
    with start(*words, **options) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    return process.returncode, (out or b"").decode(), (err or b"").decode()


def pids_told(process: subprocess.Popen[bytes], count: int) -> list[int]:
    """The pids that workers print after a word, once ``count`` of them have come."""
    assert process.stdout is not None
    pids: list[int] = []
    while len(pids) < count:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        pids.append(int(line.split()[-1]))
    return pids


def assert_gone(pids: list[int]) -> None:
    """All of them end within a deadline."""
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    living = [p for p in psutil.wait_procs(processes, timeout=30)[1] if p.status() != "zombie"]
    for process in living:
        process.kill()
    assert not living


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    assert_gone([p.pid for p in set(psutil.Process().children(recursive=True)) - before])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_rank_gets_its_place(count: int) -> None:
    places = "$HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE"
    script = f'echo "{places} $HOROVOD_HOSTNAME"'
    status, out, err = run("-np", str(count), "--gloo", "sh", "-c", script)
    assert (status, err) == (0, "")
    expected = [f"[{r}]<stdout>:{r}/{count} {r}/{count} localhost" for r in range(count)]
    assert sorted(out.splitlines()) == expected


def test_the_environment_of_a_worker() -> None:
    environ = {
        **os.environ,
        "OLDPWD": "/",
        "BASH_FUNC_f%%": "() { :; }",
        "KEPT": "yes",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    status, out, _ = run(
        "-np", "1", "--start-timeout", "12", sys.executable, "-c", script, env=environ
    )
    assert status == 0
    seen = json.loads(out.removeprefix("[0]<stdout>:"))
    assert seen["KEPT"] == "yes"
    assert seen["CUDA_VISIBLE_DEVICES"] == "3"
    assert seen["HOROVOD_START_TIMEOUT"] == "12"
    assert seen["PYTHONUNBUFFERED"] == "1"
    assert not {"OLDPWD", "BASH_FUNC_f%%", "HOROVOD_CPU_OPERATIONS"} & set(seen)


def test_the_secret_is_in_no_command_line_and_no_message() -> None:
    script = 'tr "\\0" " " < /proc/$PPID/cmdline; ps -eo args; echo "secret $_HOROVOD_SECRET_KEY"'
    status, out, err = run("-np", "1", "--verbose", "sh", "-c", script)
    assert status == 0
    *lines, told = out.splitlines()
    secret = told.split()[-1]
    assert len(secret) == 44
    assert secret not in err
    assert not [line for line in lines if secret in line]


def test_one_word_with_spaces_is_a_shell_command() -> None:
    status, out, _ = run("-np", "1", "cd / && pwd")
    assert (status, out) == (0, "[0]<stdout>:/\n")


def test_words_reach_the_command_as_they_are() -> None:
    status, out, _ = run("-np", "1", "printf", "%s|", "a b", "$HOME", "*", "--verbose", "")
    assert (status, out) == (0, "[0]<stdout>:a b|$HOME|*|--verbose||\n")


def test_rank_0_reads_standard_input_and_the_others_read_nothing() -> None:
    with start("-np", "2", "sh", "-c", "cat; echo end", stdin=subprocess.PIPE) as process:
        out, _ = process.communicate(b"typed\n", timeout=TIMEOUT_S)
    assert sorted(out.splitlines()) == [
        b"[0]<stdout>:end",
        b"[0]<stdout>:typed",
        b"[1]<stdout>:end",
    ]


def test_both_streams_are_told_apart() -> None:
    status, out, err = run("-np", "1", "echo out; echo err >&2; printf tail")
    assert (status, out, err) == (
        0,
        "[0]<stdout>:out\n[0]<stdout>:tail\n",
        "[0]<stderr>:err\n",
    )


@pytest.mark.timeout(240)
def test_a_hundred_thousand_lines_arrive_whole() -> None:
    count = 100_000
    script = f"import sys; sys.stdout.write(''.join(f'{{i}} line\\n' for i in range({count})))"
    with start("-np", "3", sys.executable, "-c", script, stderr=subprocess.STDOUT) as process:
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    lines = out.decode().splitlines()
    for rank in range(3):
        prefix = f"[{rank}]<stdout>:"
        mine = [line for line in lines if line.startswith(prefix)]
        assert mine == [f"{prefix}{i} line" for i in range(count)]
    assert len(lines) == 3 * count


def test_output_into_a_file_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        status, _, _ = run("-np", "1", "printf", "\\377\\0\\n10%%\\r20%%\\r", stdout=file)
    assert status == 0
    expected = b"[0]<stdout>:\xff\0\n[0]<stdout>:10%\r[0]<stdout>:20%\r"
    assert (tmp_path / "out").read_bytes() == expected


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_launcher() -> None:
    script = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print('child', child.pid)\n"
        "import os; os._exit(0)\n"
    )
    status, out, _ = run("-np", "1", sys.executable, "-c", script)
    assert status == 0
    # It has left the session, so after a success it may live on: ended here.
    os.killpg(int(out.split()[-1]), signal.SIGKILL)


def test_what_a_finished_worker_left_in_its_group_is_ended() -> None:
    status, out, _ = run("-np", "1", "sh", "-c", 'sleep 1000 & echo "child $!"')
    assert status == 0
    assert_gone([int(out.split()[-1])])


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


def test_output_before_a_failure_is_not_lost() -> None:
    script = "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done; printf last; exit 1"
    status, out, _ = run("-np", "1", "sh", "-c", script)
    assert status == 1
    assert out.splitlines() == [f"[0]<stdout>:{i}" for i in range(2000)] + ["[0]<stdout>:last"]


def test_whoever_ignores_sigterm_is_killed() -> None:
    script = f"if [ $HOROVOD_RANK = 0 ]; then read line; exit 1; fi; {STUBBORN}"
    with start("-np", "2", "sh", "-c", script, stdin=subprocess.PIPE) as process:
        pids = pids_told(process, 1)
        _, err = process.communicate(b"go\n", timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert b"did not end within 5 s of SIGTERM" in err
    assert_gone(pids)


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_to_the_launcher_leaves_nothing(signum: signal.Signals, status: int) -> None:
    with start("-np", "2", "sh", "-c", FAMILY) as process:
        pids = pids_told(process, 4)
        process.send_signal(signum)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == status
    assert signum.name.encode() in err
    assert b"Traceback" not in err
    assert_gone(pids)


def test_a_second_ctrl_c_kills_at_once() -> None:
    with start("-np", "2", "sh", "-c", STUBBORN) as process:
        pids = pids_told(process, 2)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert b"once more kills" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert b"did not end before a second signal (SIGINT)" in err
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
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 143
    assert_gone(pids)


def test_a_killed_launcher_leaves_nothing() -> None:
    with start("-np", "2", "sh", "-c", FAMILY) as process:
        pids = pids_told(process, 4)
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
        assert_gone(pids)


def test_a_killed_process_group_of_the_launcher_leaves_nothing() -> None:
    with start("-np", "2", "sh", "-c", FAMILY, start_new_session=True) as process:
        pids = pids_told(process, 4)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        assert_gone(pids)


def test_a_killed_launcher_leaves_no_stubborn_worker_either() -> None:
    with start("-np", "1", "sh", "-c", STUBBORN) as process:
        pids = pids_told(process, 1)
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
        assert_gone(pids)


def test_a_console_that_closes_ends_the_job() -> None:
    script = "while :; do echo line; done"
    with start("-np", "2", "sh", "-c", script) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 141


def test_a_console_that_nobody_reads_does_not_hide_a_failure(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    script = f"if [ $HOROVOD_RANK = 1 ]; then read line < {tmp_path}/go; exit 5; fi; yes"
    with start("-np", "2", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pending = array.array("i", [0])
        while pending[0] < 15 * 4096:  # the pipe takes 64 KiB: it is full now, or almost
            fcntl.ioctl(process.stdout, termios.FIONREAD, pending)
            os.sched_yield()
        (tmp_path / "go").write_text("\n")
        # Standard output is left unread until the failure has been reported.
        assert b"rank 1" in process.stderr.readline()
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert err.endswith(b"Process name: 1\nExit code: 5\n")


@pytest.mark.parametrize("word", ["no-such-command", "./no-such-command"])
def test_a_command_that_does_not_exist(word: str) -> None:
    status, out, err = run("-np", "2", word, "x")
    assert (status, out) == (127, "")
    assert "command not found" in err
    assert err.count(word) == 1


def test_a_command_that_cannot_be_executed(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    status, _, err = run("-np", "2", str(tmp_path / "script"))
    assert status == 126
    assert "not executable" in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-np", "2", "-H", "elsewhere.invalid:2", "true"], "not this machine"),
        (["-np", "4", "-H", "localhost:2", "true"], "4 processes were asked for"),
        (["-np", "2", "-H", "localhost", "true"], "name:slots"),
        (["-np", "2"], "no command"),
    ],
)
def test_wrong_command_lines(words: list[str], text: str) -> None:
    status, _, err = run(*words)
    assert status == 2
    assert text in err
    assert "Traceback" not in err


def test_hosts_of_this_machine() -> None:
    status, out, _ = run("-np", "1", "-H", "127.0.0.1:4", "sh", "-c", "echo $HOROVOD_HOSTNAME")
    assert (status, out) == (0, "[0]<stdout>:127.0.0.1\n")


def test_the_lines_of_each_rank_are_kept(tmp_path: Path) -> None:
    script = "echo out; echo err >&2; printf tail"
    status, out, _ = run("-np", "11", "--output-filename", f"{tmp_path}/a/b", "sh", "-c", script)
    assert status == 0
    assert len(out.splitlines()) == 22
    folders = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert folders == [f"rank.{rank:02}" for rank in range(11)]
    kept = tmp_path / "a" / "b" / "rank.07"
    assert (kept / "stdout").read_text() == "[7]<stdout>:out\n[7]<stdout>:tail\n"
    assert (kept / "stderr").read_text() == "[7]<stderr>:err\n"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, out, err = run("-np", "1", "--output-filename", f"{tmp_path}/file/x", "echo", "never")
    assert (status, out) == (2, "")
    assert "--output-filename" in err
    assert "Traceback" not in err


def test_version_and_build_table() -> None:
    status, version, _ = run("--version")
    assert status == 0
    assert version.count("\n") == 1
    status, table, _ = run("-cb")
    assert status == 0
    assert table.startswith(f"Horovod v{version.strip()}:\n\nAvailable Frameworks:\n")


def test_verbose_names_every_process() -> None:
    status, _, err = run("-np", "2", "--verbose", "true")
    assert status == 0
    assert "started rank 0 on localhost (pid " in err
    assert "started rank 1 on localhost (pid " in err


def test_standard_files_may_be_closed() -> None:
    words = " ".join([*LAUNCHER, "-np", "2", "true"])
    with subprocess.Popen(["/bin/sh", "-c", f"exec {words} <&- >&- 2>&-"]) as process:
        assert process.wait(TIMEOUT_S) == 0


def test_ctrl_c_in_a_terminal() -> None:
    """The launcher in the foreground of a pseudo-terminal, where ^C comes as a byte."""
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


def test_the_ranks_of_a_job_meet() -> None:
    script = (
        "import os\n"
        "from horovod.rendezvous import identify, meet\n"
        "identity = identify(os.environ)\n"
        "mesh = meet(identity, 1, 4096, 60, os.environ)\n"
        "assert mesh.pids[identity.rank] == os.getpid() and len(set(mesh.pids)) == 4\n"
    )
    status, _, err = run("-np", "4", sys.executable, "-c", script)
    assert (status, err) == (0, "")
