"""The files of ``--output-filename``: for each rank a copy of its lines on the console.

What cannot be created is refused before anything is started. A file that cannot be written later,
because the disk is full, costs the rest of that copy and not the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["LogFile", "Logs"]

_STREAMS = ("stdout", "stderr")


class LogFile:
    """One copy; ``problem`` says why it has stopped."""

    def __init__(self, path: Path) -> None:
        """Create or empty ``path``. Raises OSError."""
        self.path = path
        self._file = path.open("wb", buffering=0)
        self.problem = ""

    def write(self, data: bytes) -> None:
        """Append ``data``; files take it at once."""
        if self._file.closed:
            return
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._stop(error)

    def close(self) -> None:
        """Nothing more is written; may be repeated."""
        try:
            self._file.close()
        except OSError as error:  # some network file systems write late
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        self.problem = self.problem or error.strerror or str(error)
        if not self._file.closed:
            self.close()


class Logs:
    """All files of a job: ``rank.<R>/stdout`` and ``stderr``, or none without a directory."""

    def __init__(self, directory: Path | None, ranks: Sequence[int]) -> None:
        """Create or empty the files. Raises OSError."""
        self._files: dict[tuple[int, str], LogFile] = {}
        self._told: LogFile | None = None
        if directory is None:
            return
        width = len(str(max(ranks)))  # of the largest number, so names sort
        try:
            for rank in ranks:
                folder = directory / f"rank.{rank:0{width}}"
                folder.mkdir(parents=True, exist_ok=True)
                for stream in _STREAMS:
                    self._files[rank, stream] = LogFile(folder / stream)
        except OSError:
            self.close()
            raise

    def of(self, rank: int) -> tuple[LogFile | None, LogFile | None]:
        """Where the standard output and error of ``rank`` are kept."""
        stdout, stderr = (self._files.get((rank, stream)) for stream in _STREAMS)
        return stdout, stderr

    def close(self) -> None:
        """Nothing more is kept."""
        for file in self._files.values():
            file.close()

    def news(self) -> str:
        """The first file that has become incomplete, once; a full disk soon stops them all."""
        if self._told or not (stopped := self._stopped()):
            return ""
        self._told = stopped[0]
        told = self._told
        return f"{told.path} is incomplete from here on: {told.problem}; the job goes on"

    def summary(self) -> str:
        """All other files that are incomplete in the end."""
        names = [str(file.path) for file in self._stopped() if file is not self._told]
        return f"incomplete, too: {', '.join(names)}" if names else ""

    def _stopped(self) -> list[LogFile]:
        return [file for file in self._files.values() if file.problem]
