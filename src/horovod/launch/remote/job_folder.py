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
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from horovod.core.base.own_files import OwnFolder, open_own

__all__ = [
    "BUSY",
    "DRIVER",
    "ENDING",
    "READY",
    "WELCOME",
    "JobFolder",
    "JobFolderTakenError",
    "check_job_id",
    "check_private",
    "connect_to_agent",
    "host_folder_path",
    "is_same_user",
    "job_folder_path",
    "listen_at",
    "unlink",
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


# What a keeper says to the bridge that has started it: it listens, or another one lives.
READY, BUSY = b"ready\n", b"busy\n"
# How it answers a bridge that has named its run. Anything else is why it refuses.
WELCOME, ENDING = b"welcome\n", b"ending\n"

_NAME = "socket"
_PEER = struct.Struct("iII")  # pid, user, group


def listen_at(folder: Path) -> socket.socket:
    """Listen in ``folder``, which is this process's alone."""
    unlink(folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _inside(folder):
            listener.bind(_NAME)
    except BaseException:
        listener.close()
        raise
    listener.listen(8)
    listener.setblocking(False)
    return listener


def unlink(folder: Path) -> None:
    """Nobody can connect any more; what is no socket stays."""
    path = folder / _NAME
    if path.is_socket() and not path.is_symlink():
        path.unlink(missing_ok=True)


def connect_to_agent(folder: Path) -> socket.socket | None:
    """A connection with the keeper that listens in ``folder``; None if there is none.

    Raises:
        PermissionError: the folder is not the user's alone, or somebody else listens.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        check_private(folder)
        with _inside(folder):
            connected.connect(_NAME)
        if not is_same_user(connected):
            raise PermissionError(f"{folder}: another user listens there")
    except (FileNotFoundError, ConnectionRefusedError):
        connected.close()
        return None
    except BaseException:
        connected.close()
        raise
    return connected


def is_same_user(connected: socket.socket) -> bool:
    """Whether the other end is a process of this user, as far as the system tells.

    Where it does not, the folder's mode alone keeps others out.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _PEER.size))
    return bool(user == os.getuid())


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """There even a long path has a short name, as sockets need it."""
    before = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(before)
        os.close(before)
