"""Failures of ``horovod.run``: the cause is raised, all workers end, the caller keeps working."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import horovod

pytestmark = pytest.mark.usefixtures("nothing_is_left")

BEGINNING = "Horovod detected that one or more processes exited"


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def wait_for_ever() -> None:
    threading.Event().wait()


def failing(how: str) -> Any:
    if rank() != 1:
        wait_for_ever()
    if how == "raise":
        raise LookupError("nothing under the third stone")
    if how == "thread":
        threading.Thread(target=wait_for_ever).start()
        raise LookupError("and a thread goes on")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit 0":
        sys.exit(0)
    if how == "exit 3":
        sys.exit(3)
    if how == "at once":
        os._exit(0)
    if how == "result":
        return threading.Lock()
    raise AssertionError(how)


@pytest.mark.parametrize(
    ("how", "texts"),
    [
        ("raise", ["rank 1 raised LookupError: nothing under the third stone", "Traceback (most"]),
        ("thread", ["rank 1 raised LookupError: and a thread goes on"]),
        ("kill", ["rank 1 on localhost (pid ", "was ended by SIGKILL", "Exit code: -9"]),
        ("exit 0", ["rank 1 called sys.exit(0) and so has no result", "Exit code: 1"]),
        ("exit 3", ["rank 1 called sys.exit(3)", "Exit code: 3"]),
        ("at once", ["rank 1 on localhost", "exited with code 0 and left no result"]),
        ("result", ["rank 1 could not pickle the result, a lock: TypeError"]),
    ],
)
def test_every_failure_comes_back_and_ends_the_others(how: str, texts: list[str]) -> None:
    with pytest.raises(RuntimeError) as caught:
        horovod.run(failing, (how,), num_proc=3)
    text = str(caught.value)
    assert text.startswith(BEGINNING)
    for part in [*texts, "Process name: 1\n"]:
        assert part in text


def test_an_exception_is_the_cause_with_its_traceback() -> None:
    class OddError(Exception):
        pass

    def inner() -> None:
        raise OddError("deep down", 7)

    with pytest.raises(RuntimeError) as caught:
        horovod.run(inner)
    assert type(caught.value.__cause__) is OddError
    assert caught.value.__cause__.args == ("deep down", 7)
    assert "in inner\n" in str(caught.value)
    assert "calls.worker" not in str(caught.value)


def test_an_exception_that_cannot_travel_is_told_in_words() -> None:
    class TwoError(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(f"{one} and {two}")

    def body() -> None:
        raise TwoError("salt", "pepper")

    with pytest.raises(RuntimeError, match="TwoError: salt and pepper") as caught:
        horovod.run(body)
    assert caught.value.__cause__ is None


def test_the_rank_that_failed_first_is_named_not_those_that_lost_it() -> None:
    def body() -> None:
        import horovod.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("the cause")
        hvd.allreduce(np.ones(3))

    with pytest.raises(RuntimeError) as caught:
        horovod.run(body, num_proc=3)
    assert "The first: rank 1 raised KeyError: 'the cause'" in str(caught.value)


class Unreadable:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return int, ("no number",)


def test_what_cannot_be_unpickled_is_named() -> None:
    with pytest.raises(RuntimeError, match="rank 0 could not unpickle the function or its argu"):
        horovod.run(print, (Unreadable(),))
    with pytest.raises(RuntimeError, match="the result of rank 0 cannot be unpickled by the call"):
        horovod.run(lambda: Unreadable())


def test_what_cannot_be_pickled_raises_before_anything_starts() -> None:
    with pytest.raises(TypeError, match="pickle"):
        horovod.run(print, (threading.Lock(),))


def test_children_of_the_caller_are_left_alone() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        with pytest.raises(RuntimeError, match="rank 0 raised ValueError"):
            horovod.run(int, ("x",))
        assert child.poll() is None
        child.kill()


def test_a_caller_that_ignores_sigterm_has_workers_that_do_not() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        disposition = horovod.run(lambda: signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert disposition == [signal.SIG_DFL]


def test_a_caller_that_reaps_every_child() -> None:
    def reap(signum: int, frame: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue

    before = signal.signal(signal.SIGCHLD, reap)
    try:
        assert horovod.run(rank, num_proc=2) == [0, 1]
        with pytest.raises(RuntimeError, match="raised ValueError"):
            horovod.run(int, ("x",))
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_launcher_that_is_killed_is_an_error() -> None:
    def body() -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        wait_for_ever()

    with pytest.raises(RuntimeError, match="the launcher was ended by SIGKILL before its job was"):
        horovod.run(body)


def test_a_launcher_that_does_not_even_start(monkeypatch: pytest.MonkeyPatch) -> None:
    python = sys.executable
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match="the launcher exited with code 1 before its job was"):
        horovod.run(rank, executable=python, num_proc=8)


CALLER = Path(__file__).parent / "workers" / "run_caller.py"


def start_caller(mode: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that calls ``run`` and blocks in it; the pids of all processes."""
    caller = subprocess.Popen(
        [sys.executable, str(CALLER), mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert caller.stdout is not None
    for _ in range(2):
        assert "<stdout>:stuck" in caller.stdout.readline()
    return caller, [p.pid for p in psutil.Process(caller.pid).children(recursive=True)]


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.mark.parametrize("mode", ["once", "elastic"])
def test_ctrl_c_ends_the_job_and_is_raised_in_the_caller(mode: str) -> None:
    caller, pids = start_caller(mode)
    with caller:
        caller.send_signal(signal.SIGINT)
        out, err = caller.communicate(timeout=500)
    assert caller.returncode == 0, err
    assert out.splitlines()[-1] == "interrupted, handler restored, 0 children"
    assert_gone(pids)


def test_a_second_ctrl_c_kills_what_does_not_listen() -> None:
    caller, pids = start_caller("stubborn")
    with caller:
        caller.send_signal(signal.SIGINT)
        assert caller.stderr is not None
        assert "SIGTERM: ending 2 processes" in caller.stderr.readline()
        caller.send_signal(signal.SIGINT)
        out, err = caller.communicate(timeout=500)
    assert "did not end before a second signal (SIGTERM)" in err
    assert out.splitlines()[-1] == "interrupted, handler restored, 0 children"
    assert_gone(pids)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_caller_that_dies_leaves_nothing(signum: signal.Signals) -> None:
    caller, pids = start_caller("once")
    with caller:
        caller.send_signal(signum)
        caller.communicate(timeout=500)
    assert caller.returncode == -signum
    assert_gone(pids)
