"""A job whose workers write histories: start, watch, signal, and end without leftovers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import psutil
from histories import Histories
from watch import Member, Watch

__all__ = ["SUPPORT", "JobError", "WatchedJob"]

SUPPORT = Path(__file__).resolve().parent
_MARK = "CHAOS_FOLDER"
_PATIENCE_S = 500  # for a busy machine

J = TypeVar("J", bound="WatchedJob")


class JobError(AssertionError):
    """The job did not behave as required, or not in time."""


class WatchedJob:
    """``command``, from ``open`` to ``close``, with its files in the existing ``folder``.

    Its workers write to ``folder/history`` and end when ``folder/stop`` exists; ``settings`` are
    added to their environment.
    """

    def __init__(self, folder: Path, command: Sequence[str], settings: Mapping[str, str]) -> None:
        self.folder = folder
        for name in ("history", "temporary"):
            (folder / name).mkdir()
        self.watch = Watch(Histories(folder / "history"))
        self._command = command
        self._settings = settings
        self._launcher: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start it."""
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._launcher = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(SUPPORT),
                    "TMPDIR": str(self.folder / "temporary"),
                    "HOROVOD_RECORDER_DIR": str(self.folder / "recordings"),
                    _MARK: str(self.folder),
                    **self._settings,
                },
            )

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Poll the histories until the condition holds; ``JobError`` if it never does."""
        assert self._launcher
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
            time.sleep(0.01)

    def until_next_step(self, start: float, world: str) -> float:
        """Seconds from ``start`` to the first batch done in another world than ``world``."""

        def end() -> float | None:
            return self.watch.first_batch_after(start, but_in=world)

        self.wait_until(lambda: end() is not None, "there is no next step")
        return (end() or start) - start

    def signal(self, member: Member, signum: int) -> None:
        """Send ``signum`` to the worker, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signum)

    def finish(self) -> None:
        """Let the training end; ``JobError`` unless the job succeeds and all processes end."""
        assert self._launcher
        (self.folder / "stop").touch()
        try:
            status = self._launcher.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise JobError(f"the job did not end\n{self.told()}") from None
        if status != 0:
            raise JobError(f"the job ended with {status}\n{self.told()}")
        self.watch.look()
        left = psutil.wait_procs(self.processes(), timeout=60)[1]
        if left:
            raise JobError(f"left: {[process.cmdline() for process in left]}")

    def close(self) -> None:
        """End all remaining processes."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._launcher:
            self._launcher.wait(_PATIENCE_S)

    def processes(self) -> list[psutil.Process]:
        """All processes of the job, with any parent."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == str(self.folder):
                    found.append(process)
        return found

    def told(self) -> str:
        """The end of the output of the launcher and the workers."""
        lines = (self.folder / "err").read_text(errors="replace").splitlines()
        return "\n".join(lines[-40:])

    def __enter__(self: J) -> J:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
