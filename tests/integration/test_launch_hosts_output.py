"""Output of workers on other hosts, through agents and ssh; and calls of functions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_hosts import FakeHosts, launch

import horovod


def test_a_line_of_many_megabytes(fake: FakeHosts) -> None:
    count = 5_000_000
    script = f"import sys; sys.stdout.write('x' * {count})"
    arguments = ("-np", "1", "-H", "host-a:1", sys.executable, "-c", script)
    status, out, _ = launch(fake, *arguments)
    assert (status, out) == (0, f"[0]<stdout>:{'x' * count}\n")


def test_the_lines_of_each_rank_are_kept(fake: FakeHosts, tmp_path: Path) -> None:
    arguments = ("-np", "2", "-H", "localhost:1,host-a:1", "--output-filename", f"{tmp_path}/logs")
    script = "echo out; echo err >&2; printf tail"
    status, out, _ = launch(fake, *arguments, "sh", "-c", script)
    assert status == 0
    assert len(out.splitlines()) == 4
    kept = tmp_path / "logs" / "rank.1"
    assert (kept / "stdout").read_text() == "[1]<stdout>:out\n[1]<stdout>:tail\n"
    assert (kept / "stderr").read_text() == "[1]<stderr>:err\n"


@pytest.fixture
def called(fake: FakeHosts, monkeypatch: pytest.MonkeyPatch) -> FakeHosts:
    """For jobs started by this process."""
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
