"""What a test of several hosts uses: its network, the jobs on it, notes of their ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from network import Host, Interface, Network, plain_cabling
from ranks import Job

__all__ = ["ROOT", "Lab", "wait_until"]

ROOT = Path(__file__).resolve().parents[3]
_WORKERS = ROOT / "tests" / "hosts" / "workers"
_NOTES_MODULE = ROOT / "tests" / "integration" / "workers"  # notes.py and other workers
_TIMEOUT_S = 500


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until it is true; ``AssertionError`` with ``what`` if it is not true in time."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Lab:
    """The hosts of one test and their processes, until ``close``; ``folder`` is the test's."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir()
        self._stack = ExitStack()
        self.network: Network

    @property
    def hosts(self) -> list[Host]:
        return self.network.hosts

    def open(self, cabling: int | Sequence[Sequence[Interface]], **options: Any) -> Network:
        """The network: a number of hosts on one switch, or hosts with these interfaces."""
        wanted = plain_cabling(cabling) if isinstance(cabling, int) else cabling
        self.network = self._stack.enter_context(Network(wanted, **options))
        return self.network

    def start(
        self,
        ranks_per_host: Sequence[int],
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        of_rank: Mapping[int, Mapping[str, str]] | None = None,
    ) -> Job:
        """Start ``words`` under this Python on the first hosts; makes them if there are none."""
        if not hasattr(self, "network"):
            self.open(len(ranks_per_host))
        hosts = self.hosts[: len(ranks_per_host)]
        shared = {**self.environment(), **(environment or {})}
        job = Job(hosts, ranks_per_host, [sys.executable, *words], shared, of_rank)
        self._stack.callback(job.close)
        return job

    def start_worker(
        self, ranks_per_host: Sequence[int], script: str, *words: str, **options: Any
    ) -> Job:
        """Start a script of ``workers``."""
        path = next(
            folder / script for folder in (_WORKERS, _NOTES_MODULE) if (folder / script).exists()
        )
        return self.start(ranks_per_host, [str(path), *words], **options)

    def environment(self) -> dict[str, str]:
        """Additional variables of all processes of the test."""
        return {
            "NOTES": str(self.notes),
            "PYTHONPATH": str(_NOTES_MODULE),
            "OPENBLAS_NUM_THREADS": "1",
        }

    def leave(self, name: str, fact: Any = None) -> None:
        """Write a note for the ranks."""
        unfinished = self.notes / f".{name}"
        unfinished.write_text(json.dumps(fact))
        unfinished.rename(self.notes / name)

    def read(self, name: str, job: Job) -> Any:
        """The content of a note of a rank of ``job``; waits for it."""
        path = self.notes / name

        def is_there() -> bool:
            failed = [rank.number for rank in job.ranks if (rank.poll() or 0) > 0]
            assert path.exists() or not failed, f"ranks {failed} failed\n{job.told()}"
            return path.exists()

        wait_until(is_there, f"no note {name}")
        return json.loads(path.read_text())

    def read_from(self, ranks: Sequence[int], name: str, job: Job) -> dict[int, Any]:
        """The notes ``name.0``, ... of these ranks."""
        return {rank: self.read(f"{name}.{rank}", job) for rank in ranks}

    def intruder(self, host: Host) -> subprocess.Popen[str]:
        """A process on ``host`` that connects without a proof; see its script."""
        words = [sys.executable, str(_WORKERS / "intruder.py")]
        process = host.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ)
        self._stack.callback(process.wait, _TIMEOUT_S)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            self._stack.callback(pipe.close)
        return process

    def close(self) -> None:
        """End everything."""
        self._stack.close()
