"""One elastic job with its folder: started, watched, signalled, and gone without a trace."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import psutil
import traps
from discovery import Discovery
from fault_plan import Limits
from histories import Histories
from watch import Member, Watch

__all__ = ["ChaosJob", "JobError"]

_SUPPORT = Path(__file__).resolve().parent
_TRAINING = _SUPPORT.parent / "workers" / "chaos_training.py"
_MARK = "CHAOS_FOLDER"
_PATIENCE_S = 60.0
_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(_SUPPORT),
    # Who stops is found after this time; nobody is so slow, not even on a busy machine.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3",
}
COOLDOWN = ("1", "2")


class JobError(AssertionError):
    """The job did not do what it has to, in time or at all."""


class ChaosJob:
    """A job on the hosts of ``limits``, from ``open`` to ``close``; its files are in ``folder``.

    ``on_host`` turns a command into one that runs where the launcher is to be; ``options`` are
    further ones of the launcher.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        *,
        np: int | None = None,
        options: Sequence[str] = (),
        on_host: Callable[[Sequence[str]], Sequence[str]] = list,
    ) -> None:
        self.folder = folder
        self.limits = limits
        for name in ("history", "traps", "temporary"):
            (folder / name).mkdir()
        self.discovery = Discovery(folder, limits.hosts)
        self.watch = Watch(Histories(folder / "history"))
        self._command = on_host(self._words(np or limits.full_size(limits.hosts), options))
        self._launcher: subprocess.Popen[bytes]

    def open(self) -> None:
        """Start the launcher."""
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._launcher = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={
                    **os.environ,
                    **_SETTINGS,
                    _MARK: str(self.folder),
                    "TMPDIR": str(self.folder / "temporary"),
                },
            )

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Look at the histories again and again; ``JobError`` if it does not come true."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            self.watch.look()
            if condition():
                return
            status = self._launcher.poll()
            if status is not None:
                raise JobError(f"{what}: the job has ended with {status}\n{self.told()}")
            if time.monotonic() > deadline:
                raise JobError(f"{what}: not after {_PATIENCE_S:.0f} s\n{self.told()}")
            time.sleep(0.002)

    def signal(self, member: Member, signum: int) -> None:
        """Send ``signum`` to the worker, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signum)

    def lay(self, trap: traps.Trap) -> None:
        """A fault waits for a worker."""
        traps.lay(self.folder / "traps", trap)

    def remove_trap(self, point: str) -> None:
        """No fault waits there any more."""
        traps.remove(self.folder / "traps", point)

    def finish(self) -> None:
        """Let the training end; ``JobError`` unless the job succeeds and all of it ends."""
        (self.folder / "stop").touch()
        try:
            status = self._launcher.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise JobError(f"the job did not end\n{self.told()}") from None
        if status != 0:
            raise JobError(f"the job ended with {status}\n{self.told()}")
        self.watch.look()
        left = psutil.wait_procs(self.processes(), timeout=10)[1]
        if left:
            raise JobError(f"left: {[process.cmdline() for process in left]}")
        files = [path.name for path in (self.folder / "temporary").iterdir()]
        if files:
            raise JobError(f"left: {files}")

    def close(self) -> None:
        """End whatever there still is."""
        if not hasattr(self, "_launcher"):
            return
        self.discovery.answer("good")
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._launcher.wait(_PATIENCE_S)

    def processes(self) -> list[psutil.Process]:
        """All that belong to the job, whoever their parent is by now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == str(self.folder):
                    found.append(process)
        return [process for process in found if process.pid != os.getpid()]

    def told(self) -> str:
        """The end of what the launcher and the workers have printed."""
        lines = (self.folder / "err").read_text(errors="replace").splitlines()
        return "\n".join(lines[-40:])

    def __enter__(self) -> ChaosJob:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _words(self, np: int, options: Sequence[str]) -> list[str]:
        limits = ["--min-np", str(self.limits.min_np), "--max-np", str(self.limits.max_np)]
        elastic = ["--host-discovery-script", str(self.discovery.script), *limits]
        cooldown = ["--blacklist-cooldown-range", *COOLDOWN]
        launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(np)]
        training = [sys.executable, str(_TRAINING), str(self.folder)]
        return [*launcher, *elastic, *cooldown, *options, *training]
