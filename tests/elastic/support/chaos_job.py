"""One elastic job under our launcher, with a discovery script and traps."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
import traps
from discovery import Discovery
from fault_plan import Limits
from watched_job import SUPPORT, JobError, WatchedJob

__all__ = ["STALL_SETTINGS", "ChaosJob", "JobError"]

_TRAINING = SUPPORT.parent / "workers" / "chaos_training.py"
_COOLDOWN_S = ("1", "2")
STALL_SETTINGS = {
    # Who stops is found after this time; nobody is so slow, not even on a busy machine.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3",
}


class ChaosJob(WatchedJob):
    """A job on the hosts of ``limits``.

    ``on_host`` turns a command into one that runs where the launcher is to be; ``options`` are
    further ones of the launcher.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        *,
        settings: Mapping[str, str] = STALL_SETTINGS,
        options: Sequence[str] = (),
        on_host: Callable[[Sequence[str]], Sequence[str]] = list,
    ) -> None:
        self.limits = limits
        self.discovery = Discovery(folder, limits.hosts)
        super().__init__(folder, on_host(self._words(folder, options)), settings)
        (folder / "traps").mkdir()

    def lay(self, trap: traps.Trap) -> None:
        """A fault waits for a worker."""
        traps.lay(self.folder / "traps", trap)

    def remove_trap(self, point: str) -> None:
        """No fault waits there any more."""
        traps.remove(self.folder / "traps", point)

    def finish(self) -> None:
        """As said; no file of ours may be left, either."""
        super().finish()
        files = list((self.folder / "temporary").glob("*horovod*"))
        if files:
            raise JobError(f"left: {files}")

    def close(self) -> None:
        """As said; no discovery waits any more."""
        self.discovery.answer("good")
        super().close()

    def is_whole(self) -> bool:
        """Whether the world is as large as it can be, on the hosts that there are."""
        hosts = self.discovery.hosts
        names = [member.hostname for member in self.watch.members]
        return len(names) == self.limits.full_size(hosts) and all(
            names.count(name) <= hosts.get(name, 0) for name in set(names)
        )

    def newcomers(self) -> list[psutil.Process]:
        """Workers of this machine that are in no world yet, or not any more."""
        known = {member.pid for member in self.watch.members}
        found = [process for process in self.processes() if process.pid not in known]
        return [process for process in found if _is_worker(process)]

    def _words(self, folder: Path, options: Sequence[str]) -> list[str]:
        np = self.limits.full_size(self.limits.hosts)
        launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(np)]
        limits = ["--min-np", str(self.limits.min_np), "--max-np", str(self.limits.max_np)]
        discovery = ["--host-discovery-script", str(self.discovery.script)]
        cooldown = ["--blacklist-cooldown-range", *_COOLDOWN_S]
        training = [sys.executable, str(_TRAINING), str(folder)]
        return [*launcher, *limits, *discovery, *cooldown, *options, *training]


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()[1:2] == [str(_TRAINING)]
    return False
