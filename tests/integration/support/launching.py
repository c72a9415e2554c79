"""Starting the real launcher, and the proof that nothing it started is left."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil

LAUNCHER = [sys.executable, "-m", "horovod.runner.launch"]
TIMEOUT_S = 90


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
