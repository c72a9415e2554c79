"""The files of ``--output-filename``: for each rank a copy of its lines on the console.

A file that cannot be created is an error before anything is started. If a file cannot be written
later, because the disk is full, the rest of that copy is lost and the job goes on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

from horovod.core.base.own_files import is_own_file, open_own

# This file marks a folder as one of a rank's output, which may be written to again.
MARKER = ".horovod-output"
_STREAMS = ("stdout", "stderr")
_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class LogFile:
    """One copy; ``problem`` says why it has stopped."""

    def __init__(self, path: Path, *, is_continued: bool = False) -> None:
        """Create or empty ``path``, unless it ``is_continued``. Raises OSError."""
        self.path = path
        self._file = self._opened()
        if not is_continued:
            self._file.truncate(0)
        self.problem = ""

    def go_on(self) -> None:
        """Open the file again, since more output comes."""
        if self._file.closed and not self.problem:
            try:
                self._file = self._opened()
            except OSError as error:
                self._stop(error)

    def write(self, data: bytes) -> None:
        """Append ``data``."""
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

    def _opened(self) -> FileIO:
        return open(open_own(self.path, _APPENDED, 0o666), "ab", buffering=0)

    def _stop(self, error: OSError) -> None:
        self.problem = self.problem or error.strerror or str(error)
        if not self._file.closed:
            self.close()


class Logs:
    """All files of a job: ``rank.<N>/stdout`` and ``stderr``, or none without a directory.

    Without elastic training a worker's number is its rank. Files of a job that ``is_continued``
    keep their contents. Files that no job of ours has made are not touched.
    """

    def __init__(
        self, directory: Path | None, numbers: Sequence[int], *, is_continued: bool = False
    ) -> None:
        """Create or empty the files of these workers.

        Raises:
            FileExistsError: there is a file that no job has made.
            OSError: they cannot be made.
        """
        self._directory = directory
        self._is_continued = is_continued
        self._width = len(str(max(numbers, default=0)))  # of the largest number, so names sort
        self._files: dict[tuple[int, str], LogFile] = {}
        self._told: LogFile | None = None
        try:
            for number in numbers:
                self.add(number)
        except OSError:
            self.close()
            raise

    def add(self, number: int) -> None:
        """Create or empty the files of one more worker. Raises OSError."""
        if self._directory is None or (number, _STREAMS[0]) in self._files:
            return
        folder = self._directory / f"rank.{number:0{self._width}}"
        _claim(folder)
        for stream in _STREAMS:
            self._files[number, stream] = LogFile(folder / stream, is_continued=self._is_continued)

    def of(self, number: int) -> tuple[LogFile | None, LogFile | None]:
        """The files for the standard output and error of a worker."""
        stdout, stderr = (self._files.get((number, stream)) for stream in _STREAMS)
        for file in (stdout, stderr):
            if file is not None:
                file.go_on()
        return stdout, stderr

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()

    def news(self) -> str:
        """A line about the first file that became incomplete, once: a full disk soon stops all."""
        if self._told or not (stopped := self._stopped()):
            return ""
        told = self._told = stopped[0]
        return f"{told.path} is incomplete from here on: {told.problem}; the job goes on"

    def summary(self) -> str:
        """A line about all other files that are incomplete in the end."""
        names = [str(file.path) for file in self._stopped() if file is not self._told]
        return f"incomplete, too: {', '.join(names)}" if names else ""

    def _stopped(self) -> list[LogFile]:
        return [file for file in self._files.values() if file.problem]


def _claim(folder: Path) -> None:
    """Make the folder of a rank's output, or check that an earlier job of this user made it."""
    marker = folder / MARKER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if not folder.is_symlink() and is_own_file(marker.lstat()):
            return
    except FileNotFoundError:
        if not folder.is_symlink() and not any(folder.iterdir()):
            os.close(open_own(marker, os.O_WRONLY | os.O_CREAT))
            return
    raise FileExistsError(f"{folder} holds something else than a rank's output; name another place")
