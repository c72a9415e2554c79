"""Starts ranks on hosts one by one, without ``horovodrun``.

Every rank gets the variables of a launcher, and a store runs on the first host. Output goes to
files, so that no rank waits for a reader.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import psutil
from job_store import JobStore
from network import Host

from horovod.core.base.rank_info import RankInfo
from horovod.launch.model.hosts import HostSlots, assign_ranks

__all__ = ["Job", "Rank", "slots_of"]


class Rank:
    """One rank's process. ``pid`` is its pid on this machine, not inside the host."""

    def __init__(
        self, number: int, host: Host, entered: subprocess.Popen[str], folder: Path
    ) -> None:
        self.number = number
        self.host = host
        self._entered = entered  # nsenter, the parent of the rank's process
        self._folder = folder

    @property
    def pid(self) -> int:
        (child,) = psutil.Process(self._entered.pid).children()
        return int(child.pid)

    def signal(self, signum: int) -> None:
        """Send a signal to the rank's own process."""
        os.kill(self.pid, signum)

    def poll(self) -> int | None:
        """Exit status, or None; negative: the signal that ended it."""
        return self._entered.poll()

    def kill(self) -> None:
        """End it, if it runs, and all processes that it started."""
        if self.poll() is not None:
            return
        for process in psutil.Process(self._entered.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._entered.send_signal(signal.SIGCONT)  # nsenter stops when its child is stopped
        self._entered.wait(timeout=200)

    @property
    def output(self) -> str:
        return (self._folder / f"{self.number}.out").read_text()

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        return (self._folder / f"{self.number}.err").read_text()


class Job:
    """``words`` on ``ranks_per_host[i]`` ranks of each host, until they end or ``close``.

    ``environment`` goes to all ranks, and what ``of_rank`` has for a rank to that one.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        ranks_per_host: Sequence[int],
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        of_rank: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        self.ranks: list[Rank] = []
        self._hosts = hosts
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="job-")))
        try:
            self.store = JobStore(hosts[0], self._folder / "store.err")
            self._stack.callback(self.store.close)
            for rank_info in slots_of(hosts, ranks_per_host):
                own = {**(environment or {}), **(of_rank or {}).get(rank_info.rank, {})}
                self._start_rank(rank_info, words, own)
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_s: float) -> list[int]:
        """Exit statuses, once all ranks have ended; ``AssertionError`` with all output if late."""
        deadline = time.monotonic() + timeout_s
        while any(rank.poll() is None for rank in self.ranks):
            assert time.monotonic() < deadline, f"not over after {timeout_s:g} s\n{self.told()}"
            time.sleep(0.005)
        return [rank.poll() or 0 for rank in self.ranks]

    def check(self, timeout_s: float) -> list[str]:
        """What each rank printed, after all have ended with 0."""
        statuses = self.wait(timeout_s)
        assert not any(statuses), f"exit statuses {statuses}\n{self.told()}"
        return [rank.output for rank in self.ranks]

    def told(self) -> str:
        """The last output of all ranks and the store, for messages."""
        parts = [
            f"--- {path.name}\n{path.read_text()[-8000:]}"
            for path in sorted(self._folder.iterdir())
            if path.stat().st_size
        ]
        return "\n".join(parts)

    def close(self) -> None:
        """End all processes that still run."""
        self._stack.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start_rank(
        self, rank_info: RankInfo, words: Sequence[str], own: Mapping[str, str]
    ) -> None:
        host = next(each for each in self._hosts if each.name == rank_info.hostname)
        with (
            (self._folder / f"{rank_info.rank}.out").open("w") as out,
            (self._folder / f"{rank_info.rank}.err").open("w") as err,
        ):
            # Ranks share the cores.
            variables = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                **self.store.variables(rank_info),
                **own,
            }
            entered = host.start(words, stdout=out, stderr=err, env=variables)
        rank = Rank(rank_info.rank, host, entered, self._folder)
        self.ranks.append(rank)
        self._stack.callback(rank.kill)


def slots_of(hosts: Sequence[Host], ranks_per_host: Sequence[int]) -> tuple[RankInfo, ...]:
    """The position of every rank in the world, by rank."""
    pairs = zip(hosts, ranks_per_host, strict=True)
    listed = [HostSlots(host.name, count) for host, count in pairs]
    return assign_ranks(listed, sum(ranks_per_host))
