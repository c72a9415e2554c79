"""A job of ``elastic_counter.py``, with the lines of the launcher and the notes of the workers."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from launching import TIMEOUT_S, start

WORKER = Path(__file__).parents[1] / "workers" / "elastic_counter.py"


class Job:
    """The counter under ``horovodrun --verbose``; its lines are read one by one."""

    def __init__(self, folder: Path, *options: str, **more: object) -> None:
        self.folder = folder
        arguments = ["--verbose", *options, sys.executable, str(WORKER), str(folder)]
        self.process = start(*arguments, stderr=subprocess.STDOUT, **more)
        self.pids: dict[int, int] = {}  # of the newest worker, by its first rank
        self.lines: list[str] = []

    def line(self, pattern: str) -> re.Match[str]:
        """The next line that matches."""
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline().decode()
            assert line, f"no {pattern!r} in:\n{''.join(self.lines)}"
            self.lines.append(line)
            if started := re.search(r"started rank (\d+) on \S+ \(pid (\d+)\)", line):
                self.pids[int(started[1])] = int(started[2])
            if found := re.search(pattern, line):
                return found

    def history(self, worker: int) -> list[str]:
        path = self.folder / f"{worker}.txt"
        return path.read_text().splitlines() if path.exists() else []

    def watch(self, worker: int, is_there: Callable[[list[str]], bool]) -> list[str]:
        """The worker's notes, once the condition holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_there(found := self.history(worker)):
            told = "".join(self.lines)
            assert time.monotonic() < deadline, f"worker {worker} has noted {found}\n{told}"
            time.sleep(0.005)
        return found

    def end(self) -> tuple[int, str]:
        (self.folder / "enough").touch()
        out, _ = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, "".join(self.lines) + out.decode()


def counts(history: list[str], size: int) -> int:
    """How many batches were counted by ``size`` ranks."""
    return sum(1 for line in history if re.fullmatch(rf"batch \d+ {size}", line))
