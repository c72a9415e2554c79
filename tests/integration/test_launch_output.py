"""Workers' lines through the real launcher: whole, with their rank, kept in files."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import re
import resource
import subprocess
import sys
import termios
import time
from datetime import datetime
from pathlib import Path

import pytest
from fake_hosts import FakeHosts, launch
from foreign_files import contents, fill, lost
from launching import LAUNCHER, TIMEOUT_S, default_signals, run, start

pytestmark = pytest.mark.usefixtures("no_child_is_left")


# On this machine, and with agents in between.
both_places = pytest.mark.parametrize(
    "where", [(), ("-H", "host-a:2,localhost:1")], ids=["here", "hosts"]
)


@both_places
def test_both_streams_are_told_apart(where: tuple[str, ...], fake: FakeHosts) -> None:
    script = "echo out; echo err >&2; printf tail"
    status, out, err = launch(fake, "-np", "1", *where, script)
    assert (status, out, err) == (
        0,
        "[0]<stdout>:out\n[0]<stdout>:tail\n",
        "[0]<stderr>:err\n",
    )


@both_places
def test_a_hundred_thousand_lines_arrive_whole(where: tuple[str, ...], fake: FakeHosts) -> None:
    count = 100_000
    script = f"import sys; sys.stdout.write(''.join(f'{{i}} line\\n' for i in range({count})))"
    arguments = ("-np", "3", *where, sys.executable, "-c", script)
    with start(*arguments, env=fake.environ, stderr=subprocess.STDOUT) as process:
        out, _ = process.communicate(timeout=500)
    assert process.returncode == 0
    lines = out.decode().splitlines()
    for rank in range(3):
        prefix = f"[{rank}]<stdout>:"
        mine = [line for line in lines if line.startswith(prefix)]
        assert mine == [f"{prefix}{i} line" for i in range(count)]
    assert len(lines) == 3 * count


@both_places
def test_output_into_a_file_and_bytes_that_are_no_text(
    where: tuple[str, ...], fake: FakeHosts, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("wb") as file:
        arguments = ("-np", "1", *where, "printf", "\\377\\0\\n10%%\\r20%%\\r")
        status, _, _ = launch(fake, *arguments, stdout=file)
    assert status == 0
    expected = b"[0]<stdout>:\xff\0\n[0]<stdout>:10%\r[0]<stdout>:20%\r"
    assert (tmp_path / "out").read_bytes() == expected


@both_places
def test_output_before_a_failure_is_not_lost(where: tuple[str, ...], fake: FakeHosts) -> None:
    script = "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done; printf last; exit 1"
    status, out, _ = launch(fake, "-np", "1", *where, "sh", "-c", script)
    assert status == 1
    assert out.splitlines() == [f"[0]<stdout>:{i}" for i in range(2000)] + ["[0]<stdout>:last"]


@both_places
def test_a_console_that_closes_ends_the_job(where: tuple[str, ...], fake: FakeHosts) -> None:
    script = "while :; do echo line; done"
    with start("-np", "2", *where, "sh", "-c", script, env=fake.environ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 141


@both_places
def test_an_unread_console_does_not_hide_a_failure(
    where: tuple[str, ...], fake: FakeHosts, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    script = f"if [ $HOROVOD_RANK = 1 ]; then read line < {tmp_path}/go; exit 5; fi; yes"
    with start("-np", "2", *where, "sh", "-c", script, env=fake.environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pending = array.array("i", [0])
        while pending[0] < 15 * 4096:  # the pipe holds 64 KiB: it is full now, or almost
            fcntl.ioctl(process.stdout, termios.FIONREAD, pending)
            time.sleep(0.005)
        (tmp_path / "go").write_text("\n")
        # Standard output is read only after the failure has been reported.
        host = b"host-a" if where else b"localhost"
        assert b"rank 1 on " + host in process.stderr.readline()
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert err.endswith(b"Process name: 1\nExit code: 5\n")
    # All buffers are bounded.
    assert len(out) < 32 * 1024 * 1024


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
    assert f"--output-filename: {tmp_path}/file/x/rank.0: Not a directory" in err
    assert "Traceback" not in err


def test_a_folder_without_write_permission(tmp_path: Path) -> None:
    assert run("-np", "1", "--output-filename", str(tmp_path), "true")[0] == 0
    (tmp_path / "rank.0" / "stdout").unlink()
    (tmp_path / "rank.0" / "stdout").mkdir()
    status, out, err = run("-np", "1", "--output-filename", str(tmp_path), "echo", "never")
    assert (status, out) == (2, "")
    assert f"--output-filename: {tmp_path}/rank.0/stdout: Is a directory" in err


def small_disk() -> None:
    """A limit of the launcher simulates it: each file holds little more than a line."""
    default_signals()
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))


def test_files_of_a_user_are_no_output(tmp_path: Path) -> None:
    fill(tmp_path / "place", tmp_path / "outside")
    before = contents(tmp_path)
    arguments = ("--output-filename", str(tmp_path / "place"), "echo", "never")
    status, out, err = run("-np", "1", *arguments)
    assert (status, out) == (2, "")
    assert f"{tmp_path}/place/rank.0 holds something else than a rank's output" in err
    assert lost(before, tmp_path) == []


def test_a_disk_that_is_full_later_is_told_once_and_the_job_goes_on(tmp_path: Path) -> None:
    script = "echo one; echo two; echo kept >&2"
    arguments = ("-np", "2", "--output-filename", str(tmp_path), "sh", "-c", script)
    status, out, err = run(*arguments, preexec_fn=small_disk)
    assert status == 0
    assert len(out.splitlines()) == 4
    own = [line for line in err.splitlines() if line.startswith("horovodrun: ")]
    told, *rest = own
    assert "stdout is incomplete from here on: File too large; the job goes on" in told
    assert len(rest) == 1
    assert rest[0].startswith("horovodrun: incomplete, too: ")
    assert sorted(line.partition("rank.")[2][:1] for line in own) == ["0", "1"]
    assert (tmp_path / "rank.1" / "stderr").read_text() == "[1]<stderr>:kept\n"


@pytest.mark.parametrize("option", ["-prefix-timestamp", "--prefix-output-with-timestamp"])
def test_each_line_may_begin_with_the_time(option: str, tmp_path: Path) -> None:
    began = int(time.time())
    arguments = ("-np", "2", option, "--output-filename", str(tmp_path))
    status, out, err = run(*arguments, "sh", "-c", "echo out; printf tail; echo err >&2")
    assert status == 0
    for line in out.splitlines() + err.splitlines():
        moment, _, rest = line.partition(" [")
        assert began <= datetime.fromisoformat(moment).timestamp() <= time.time()
        assert rest in {
            f"{r}]<std{s}" for r in (0, 1) for s in ("out>:out", "out>:tail", "err>:err")
        }
    assert len(out.splitlines()) == 4
    kept = (tmp_path / "rank.1" / "stdout").read_text().splitlines()
    assert kept == [line for line in out.splitlines() if "[1]" in line]


def test_standard_files_may_be_closed() -> None:
    arguments = " ".join([*LAUNCHER, "-np", "2", "true"])
    with subprocess.Popen(["/bin/sh", "-c", f"exec {arguments} <&- >&- 2>&-"]) as process:
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("buffering", ["", "1"])
@pytest.mark.parametrize("words", [("--version",), ("-np", "1", "echo", "hello")])
def test_output_to_a_full_disk_is_told_in_a_line(words: tuple[str, ...], buffering: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": buffering}
    with open("/dev/full", "wb") as full:
        status, _, err = run(*words, stdout=full, env=environment)
    assert status != 0
    assert "horovodrun: the output cannot be written: No space left on device" in err
    assert "Traceback" not in err


def test_a_prompt_appears_on_a_terminal_and_is_answered() -> None:
    program = "print('hello ' + input('name? '))"
    command = [*LAUNCHER, "-np", "1", sys.executable, "-c", program]
    screen, terminal = os.openpty()
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        while b"name? " not in shown:
            shown += os.read(screen, 1000)
        os.write(screen, b"Ada\n")
        while b"hello Ada" not in shown:
            shown += os.read(screen, 1000)
        assert process.wait(TIMEOUT_S) == 0
    os.close(screen)
    assert re.match(rb"(\x1b\[\d+m)?\[0\](\x1b\[m)? name\? ", shown)


def test_a_dumb_terminal_gets_no_escape_sequences() -> None:
    screen, terminal = os.openpty()
    environment = {**os.environ, "TERM": "dumb"}
    arguments = ("-np", "1", "echo", "hello")
    with start(*arguments, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal has hung up
            while part := os.read(screen, 4096):
                shown += part
        assert process.wait(TIMEOUT_S) == 0
    os.close(screen)
    assert b"[0] hello" in shown
    assert b"\x1b" not in shown


def test_a_rank_under_pdb_gets_the_terminal(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nrank = os.environ['HOROVOD_RANK']\nassert rank == '0', 'bad'\n")
    command = [*LAUNCHER, "-np", "2", "--debug-rank", "1", sys.executable, str(script)]
    screen, terminal = os.openpty()
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        while b"(Pdb) " not in shown:
            shown += os.read(screen, 1000)
        os.write(screen, b"p rank\nq\nq\n")  # pdb begins anew after the first
        while b"'1'" not in shown:
            shown += os.read(screen, 1000)
        process.wait(TIMEOUT_S)
    os.close(screen)
    assert b"AssertionError: bad" in shown
