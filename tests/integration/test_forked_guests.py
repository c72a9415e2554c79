"""Guests of processes that have loaded little, as Spark's do: forks of them, and so are workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from guest_jobs import HERE, call
from launching import assert_gone

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("nothing_is_left"),
    pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux"),
]

ENGINE = """
import sys
from horovod.launch.guest import Guest
name, secret = sys.stdin.readline().split()
with Guest("127.0.0.1", bytes.fromhex(secret), launcher="127.0.0.1",
           environment={"GUEST": name}) as guest:
    print(guest.address[1], flush=True)
    sys.exit(guest.wait())
"""


@dataclass
class Engine:
    """A process that has taken in a guest, which is at ``address``."""

    process: subprocess.Popen[str]
    address: tuple[str, int]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark says to NumPy where a task has one core."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@contextmanager
def two_engines(secret: bytes) -> Iterator[dict[str, Engine]]:
    with ExitStack() as processes:
        engines = {}
        for name in ("a", "b"):
            words = [sys.executable, "-c", ENGINE]
            pipe = subprocess.PIPE
            process = processes.enter_context(
                subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
            )
            processes.callback(process.kill)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{name} {secret.hex()}\n")
            process.stdin.flush()
            address = (HERE, int(process.stdout.readline()))
            engines[f"node/{name}"] = Engine(process, address)
        yield engines


def own_command() -> str:
    return Path("/proc/self/cmdline").read_text()


def test_a_job_on_forks(capfd: pytest.CaptureFixture[str]) -> None:
    def describe() -> tuple[int, float, bool]:
        import numpy as np

        import horovod.numpy as hvd

        hvd.init()
        print("hello from", os.environ["GUEST"])
        total = hvd.allreduce(np.array([hvd.rank() + 1.0]), op=hvd.Sum)[0]
        return hvd.rank(), float(total), ENGINE in own_command()

    secret = os.urandom(32)
    with two_engines(secret) as engines:
        found = call(describe, engines, secret)
        assert found == [(0, 3, True), (1, 3, True)]
        assert [engine.process.wait() for engine in engines.values()] == [0, 0]
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0]<stdout>:hello from a", "[1]<stdout>:hello from b"]
    assert err == ""


def test_an_environment_that_a_start_reads_gets_a_new_process() -> None:
    secret = os.urandom(32)
    with two_engines(secret) as engines, pytest.MonkeyPatch.context() as changed:
        changed.setenv("OMP_NUM_THREADS", "2")
        is_fork = [ENGINE in command for command in call(own_command, engines, secret)]
    assert is_fork == [False, False]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_forks_end_with_the_engines_process(tmp_path: Path, signum: signal.Signals) -> None:
    def hang() -> None:
        file = Path(tmp_path, os.environ["GUEST"])
        file.with_suffix(".new").write_text(f"{os.getppid()} {os.getpid()}")
        file.with_suffix(".new").rename(file)
        signal.pause()

    secret = os.urandom(32)
    files = [tmp_path / "a", tmp_path / "b"]
    with two_engines(secret) as engines, ThreadPoolExecutor(1) as pool:
        found = pool.submit(call, hang, engines, secret)
        while not all(file.exists() for file in files) and not found.done():
            time.sleep(0.01)
        engines["node/b"].process.send_signal(signum)
        with pytest.raises(RuntimeError, match="rank 1"):
            found.result()
        assert_gone([int(pid) for file in files for pid in file.read_text().split()])


def test_the_error_of_a_fork(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        if os.environ["HOROVOD_RANK"] == "1":
            raise KeyError("of rank 1")
        signal.pause()

    secret = os.urandom(32)
    with (
        two_engines(secret) as engines,
        pytest.raises(RuntimeError, match="rank 1 raised KeyError: 'of rank 1'") as caught,
    ):
        call(fail, engines, secret)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "KeyError: 'of rank 1'" in capfd.readouterr().err
