"""One elastic job under horovodrun, with a discovery script and traps."""

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
    # A stopped rank is found after this time; even on a busy machine no rank is so slow.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3",
}


class ChaosJob(WatchedJob):
    """A job on the hosts of ``limits``.

    ``on_host`` turns a command into one that runs on the launcher's host; ``options`` are
    additional options of the launcher.
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
        """Add a fault that waits for a worker."""
        traps.lay(self.folder / "traps", trap)

    def remove_trap(self, point: str) -> None:
        """Remove a waiting fault."""
        traps.remove(self.folder / "traps", point)

    def finish(self) -> None:
        """As in the base class; no file of ours may be left."""
        super().finish()
        files = list((self.folder / "temporary").glob("*horovod*"))
        if files:
            raise JobError(f"left: {files}")

    def close(self) -> None:
        """As in the base class; a blocked discovery ends too."""
        self.discovery.answer("good")
        super().close()

    def is_whole(self) -> bool:
        """Whether the world is as large as the hosts allow."""
        hosts = self.discovery.hosts
        names = [member.hostname for member in self.watch.members]
        return len(names) == self.limits.full_size(hosts) and all(
            names.count(name) <= hosts.get(name, 0) for name in set(names)
        )

    def newcomers(self) -> list[psutil.Process]:
        """Workers of this machine that are in no world, not yet or no longer."""
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
