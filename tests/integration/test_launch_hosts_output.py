"""What workers on other hosts print, on its way through agents and ssh; and calls of functions."""

from __future__ import annotations

import array
import fcntl
import os
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hosts import FakeHosts
from launching import TIMEOUT_S, run, start

import horovod


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeHosts]:
    (tmp_path / "fake").mkdir()
    hosts = FakeHosts(tmp_path / "fake")
    yield hosts
    hosts.assert_empty()


def launch(fake: FakeHosts, *words: str, **options: object) -> tuple[int, str, str]:
    return run(*words, **{"env": fake.environ, **options})


def test_both_streams_are_told_apart(fake: FakeHosts) -> None:
    script = "echo out; echo err >&2; printf tail"
    status, out, err = launch(fake, "-np", "1", "-H", "host-a:1", script)
    assert (status, out, err) == (
        0,
        "[0]<stdout>:out\n[0]<stdout>:tail\n",
        "[0]<stderr>:err\n",
    )


@pytest.mark.timeout(240)
def test_a_hundred_thousand_lines_arrive_whole(fake: FakeHosts) -> None:
    count = 100_000
    script = f"import sys; sys.stdout.write(''.join(f'{{i}} line\\n' for i in range({count})))"
    words = ("-np", "3", "-H", "host-a:2,localhost:1", sys.executable, "-c", script)
    with start(*words, env=fake.environ, stderr=subprocess.STDOUT) as process:
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    lines = out.decode().splitlines()
    for rank in range(3):
        prefix = f"[{rank}]<stdout>:"
        mine = [line for line in lines if line.startswith(prefix)]
        assert mine == [f"{prefix}{i} line" for i in range(count)]
    assert len(lines) == 3 * count


def test_a_line_of_many_megabytes(fake: FakeHosts) -> None:
    count = 5_000_000
    script = f"import sys; sys.stdout.write('x' * {count})"
    words = ("-np", "1", "-H", "host-a:1", sys.executable, "-c", script)
    status, out, _ = launch(fake, *words)
    assert (status, out) == (0, f"[0]<stdout>:{'x' * count}\n")


def test_bytes_that_are_no_text(fake: FakeHosts, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        words = ("-np", "1", "-H", "host-a:1", "printf", "\\377\\0\\n10%%\\r20%%\\r")
        status, _, _ = launch(fake, *words, stdout=file)
    assert status == 0
    expected = b"[0]<stdout>:\xff\0\n[0]<stdout>:10%\r[0]<stdout>:20%\r"
    assert (tmp_path / "out").read_bytes() == expected


def test_a_console_that_nobody_reads_does_not_hide_a_failure(
    fake: FakeHosts, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    script = f"if [ $HOROVOD_RANK = 1 ]; then read line < {tmp_path}/go; exit 5; fi; yes"
    words = ("-np", "2", "-H", "host-a:2", "sh", "-c", script)
    with start(*words, env=fake.environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pending = array.array("i", [0])
        while pending[0] < 15 * 4096:  # the pipe takes 64 KiB: it is full now, or almost
            fcntl.ioctl(process.stdout, termios.FIONREAD, pending)
            os.sched_yield()
        (tmp_path / "go").write_text("\n")
        # Standard output is left unread until the failure has been reported.
        assert b"rank 1 on host-a" in process.stderr.readline()
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert err.endswith(b"Process name: 1\nExit code: 5\n")
    # What was waiting anywhere is bounded.
    assert len(out) < 32 * 1024 * 1024


def test_a_console_that_closes_ends_the_job(fake: FakeHosts) -> None:
    script = "while :; do echo line; done"
    with start("-np", "2", "-H", "host-a:2", "sh", "-c", script, env=fake.environ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 141


def test_the_lines_of_each_rank_are_kept(fake: FakeHosts, tmp_path: Path) -> None:
    words = ("-np", "2", "-H", "localhost:1,host-a:1", "--output-filename", f"{tmp_path}/logs")
    script = "echo out; echo err >&2; printf tail"
    status, out, _ = launch(fake, *words, "sh", "-c", script)
    assert status == 0
    assert len(out.splitlines()) == 4
    kept = tmp_path / "logs" / "rank.1"
    assert (kept / "stdout").read_text() == "[1]<stdout>:out\n[1]<stdout>:tail\n"
    assert (kept / "stderr").read_text() == "[1]<stderr>:err\n"


@pytest.fixture
def called(fake: FakeHosts, monkeypatch: pytest.MonkeyPatch) -> FakeHosts:
    """For jobs that are started from this process."""
    monkeypatch.setenv("PATH", fake.environ["PATH"])
    return fake


@pytest.mark.usefixtures("called", "nothing_is_left")
def test_results_come_back_by_rank() -> None:
    def where(word: str) -> tuple[str, str, str]:
        return word, os.environ["HOROVOD_RANK"], os.environ["HOROVOD_HOSTNAME"]

    results = horovod.run(where, ("x",), num_proc=3, hosts="host-a:1,localhost:1,host-b:1")
    assert results == [("x", "0", "host-a"), ("x", "1", "localhost"), ("x", "2", "host-b")]


@pytest.mark.usefixtures("called", "nothing_is_left")
def test_large_calls_and_results() -> None:
    data = os.urandom(5_000_000)
    results = horovod.run(lambda data: data[::-1], (data,), num_proc=2, hosts="host-a:2")
    assert results == [data[::-1]] * 2


@pytest.mark.usefixtures("called", "nothing_is_left")
def test_an_exception_elsewhere_is_the_cause() -> None:
    def fail() -> None:
        if os.environ["HOROVOD_RANK"] == "1":
            raise KeyError("lost")

    with pytest.raises(RuntimeError, match="one or more processes exited") as raised:
        horovod.run(fail, num_proc=2, hosts="localhost:1,host-a:1")
    assert isinstance(raised.value.__cause__, KeyError)
    assert "rank 1 raised KeyError: 'lost'" in str(raised.value)
    assert "in fail" in str(raised.value)


@pytest.mark.usefixtures("called", "nothing_is_left")
def test_a_function_that_ends_its_process_elsewhere() -> None:
    def leave() -> Any:
        os._exit(0)

    with pytest.raises(RuntimeError, match=r"host-a .* exited with code 0 and left no result"):
        horovod.run(leave, num_proc=1, hosts="host-a:1")


@pytest.mark.usefixtures("nothing_is_left")
def test_a_host_that_refuses(called: FakeHosts) -> None:
    called.first("host-a", "echo >&2 'Permission denied (publickey).'; exit 255")
    with pytest.raises(RuntimeError, match="could not connect to some hosts via ssh") as raised:
        horovod.run(print, num_proc=2, hosts="localhost:1,host-a:1", ssh_port=2200)
    assert "| Permission denied (publickey)." in str(raised.value)
    assert "-p 2200" in str(raised.value)


@pytest.mark.usefixtures("nothing_is_left")
def test_a_host_that_is_lost(called: FakeHosts) -> None:
    def end_the_agent() -> None:
        import signal

        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(RuntimeError, match="one or more processes exited") as raised:
        horovod.run(end_the_agent, num_proc=1, hosts="host-a:1")
    assert "the connection to host-a (rank 0), which ended: ssh was ended by SIGKILL" in str(
        raised.value
    )
