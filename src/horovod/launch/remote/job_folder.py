"""Where a job with an id keeps what must outlive its launcher: a private folder on every machine.

In it each process that keeps something has a folder of its own: the launcher ``driver``, the keeper
of a host one with the host's name. ``JobFolder`` is such a folder while its process lives: nobody
else has it at the same time. What anybody but the user could read or change is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from horovod.core.base.own_files import OwnFolder, open_own

__all__ = [
    "DRIVER",
    "JobFolder",
    "JobFolderTakenError",
    "check_job_id",
    "check_private",
    "host_folder_path",
    "job_folder_path",
]

DRIVER = "driver"
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_LOCK = "lock"
# What processes keep in their folders; the lock, which marks one as ours, goes last.
_KEPT = re.compile(r"state|log|\.state\.[0-9a-f]+\.part")
_MOST_TRIES = 100


class JobFolderTakenError(Exception):
    """Some living process has the folder; the text is what it has left in the lock."""


def check_job_id(job_id: str) -> str:
    """``job_id``, if it can be the name of a job. Raises ValueError."""
    if not _JOB_ID.fullmatch(job_id):
        raise ValueError(
            f"{job_id!r}: expected a name of at most 64 letters, digits, '_', '.' and '-', which "
            "begins with a letter or digit"
        )
    return job_id


def job_folder_path(job_id: str, name: str, environ: Mapping[str, str]) -> Path:
    """The folder of one process of a job."""
    base = environ.get("XDG_STATE_HOME", "")
    state = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return state / "horovod" / "jobs" / job_id / name


def host_folder_path(job_id: str, hostname: str, environ: Mapping[str, str]) -> Path:
    """The folder of the keeper of ``hostname``, as the launcher calls it."""
    return job_folder_path(job_id, f"host-{quote(hostname, safe='')}", environ)


def check_private(path: Path) -> None:
    """Raises PermissionError if ``path``, which exists, is not the user's alone."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise PermissionError(f"{path}: expected no symbolic link")
    if found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to user {found.st_uid}, expected {os.getuid()}")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise PermissionError(f"{path} is open to others (mode {mode:o}); try chmod go= {path}")


class JobFolder:
    """``path``, made if need be, for this process alone until ``close`` or ``remove``.

    Raises:
        HomeTakenError: a living process has it.
        PermissionError: it is not the user's alone.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = _locked(path)
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)

    def close(self) -> None:
        """Leave everything to the next one."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def remove(self) -> None:
        """Leave nothing of ours; the folders go if nothing else is in them."""
        with contextlib.suppress(OSError), OwnFolder(self.path) as folder:
            for name in (*filter(_KEPT.fullmatch, folder.names()), _LOCK):
                folder.remove(name)
        self.close()
        for path in (self.path, self.path.parent):
            with contextlib.suppress(OSError):
                path.rmdir()


def _locked(path: Path) -> int:
    for _ in range(_MOST_TRIES):
        _make(path)
        try:
            fd = open_own(path / _LOCK, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # the last one removes it
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(fd, path / _LOCK):
                return fd
        except BlockingIOError:
            text = os.pread(fd, 256, 0).decode(errors="replace")
            os.close(fd)
            raise JobFolderTakenError(text) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise OSError(f"{path} is removed again and again")


def _make(path: Path) -> None:
    """Not only the folder itself is to be private, but what leads to it from ``horovod`` on."""
    job, jobs, top = path.parents[:3]
    top.parent.mkdir(parents=True, exist_ok=True)
    for folder in (top, jobs, job, path):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        check_private(folder)


def _is_same(fd: int, path: Path) -> bool:
    """Whether ``path`` still is the open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
