"""Starts the real launcher, and checks that no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

LAUNCHER = [sys.executable, "-m", "horovod.runner.launch"]
TIMEOUT_S = 500
# Shell scripts that print their own pid, and that of a child, and do not end by themselves.
FAMILY = 'sleep 1000 & echo "child $!"; echo "self $$"; wait'
STUBBORN = "trap '' TERM; echo \"self $$\"; while :; do sleep 1; done"


def noted_environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a job whose notes and recordings go to ``folder``."""
    recordings = str(folder / "recordings")
    return {**os.environ, "NOTES": str(folder), "HOROVOD_RECORDER_DIR": recordings, **more}


def default_signals() -> None:
    """A test runner started in the background may have left SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [*LAUNCHER, *arguments],
        **{
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "preexec_fn": default_signals,
            **options,
        },
    )


def run(*arguments: str, **options: object) -> tuple[int, str, str]:
    with start(*arguments, **options) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    return process.returncode, (out or b"").decode(), (err or b"").decode()


def pids_told(process: subprocess.Popen[bytes], count: int) -> list[int]:
    """The pids that workers print at the end of a line, once there are ``count``."""
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
    living = [p for p in psutil.wait_procs(processes, timeout=200)[1] if p.status() != "zombie"]
    for process in living:
        process.kill()
    assert not living
