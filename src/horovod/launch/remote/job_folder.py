"""Where a job with an id keeps what must outlive its launcher: a private folder on every machine.

Each process that keeps something has a folder of its own in it: the launcher ``driver``, the
detached agent of a host one with the host's name. A ``JobFolder`` is such a folder while its
process lives; no other process has it at the same time. What another user could read or change is
refused.

A detached agent and its proxies meet at a Unix socket in the agent's folder.
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

from horovod.core.base.on_error import on_error
from horovod.core.base.own_files import OwnFolder, home_folder, open_own

DRIVER = "driver"
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_LOCK = "lock"
# Files that processes keep in their folders. The lock marks a folder as ours and is removed last.
_KEPT = re.compile(r"state|log|\.state\.[0-9a-f]+\.part")
_MOST_TRIES = 100


class JobFolderTakenError(Exception):
    """A living process has the folder; the text is what it has written into the lock."""


def check_job_id(job_id: str) -> str:
    """``job_id``, if it can be the name of a job. Raises ValueError."""
    if not _JOB_ID.fullmatch(job_id):
        raise ValueError(
            f"{job_id!r}: expected a name of at most 64 letters, digits, '_', '.' and '-', which "
            "begins with a letter or digit"
        )
    return job_id


def job_folder_path(job_id: str, name: str, environ: Mapping[str, str]) -> Path:
    """The folder of one process of a job.

    Raises:
        FileNotFoundError: neither ``XDG_STATE_HOME`` nor the home folder is known.
    """
    base = environ.get("XDG_STATE_HOME", "")
    state = Path(base) if base.startswith("/") else home_folder() / ".local" / "state"
    return state / "horovod" / "jobs" / job_id / name


def host_folder_path(job_id: str, hostname: str, environ: Mapping[str, str]) -> Path:
    """The folder of the detached agent of ``hostname``, the launcher's name of the host."""
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
        JobFolderTakenError: a living process has it.
        PermissionError: it is not the user's alone.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = _locked(path)
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)

    def close(self) -> None:
        """Leave the files to the next process."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def remove(self) -> None:
        """Remove our files, and the folders if nothing else is in them."""
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
        except FileNotFoundError:  # its last owner removes it
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), (path / _LOCK).lstat()):
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
    """Make the folder. It must be private, and so must its parents from ``horovod`` on."""
    job, jobs, top = path.parents[:3]
    top.parent.mkdir(parents=True, exist_ok=True)
    for folder in (top, jobs, job, path):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        check_private(folder)


# The answers of an agent to the proxy that has started it: it listens, or another agent lives.
READY, BUSY = b"ready\n", b"busy\n"
# Its answers to a proxy that has named its run. Any other answer is the reason of a refusal.
WELCOME, ENDING = b"welcome\n", b"ending\n"

_NAME = "socket"
_PEER = struct.Struct("iII")  # pid, user, group


def listen_at(folder: Path) -> socket.socket:
    """Listen in ``folder``, which is this process's alone."""
    unlink(folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with on_error(listener.close), _inside(folder):
        listener.bind(_NAME)
    listener.listen(8)
    listener.setblocking(False)
    return listener


def unlink(folder: Path) -> None:
    """Remove the socket; any other file stays."""
    path = folder / _NAME
    if path.is_socket() and not path.is_symlink():
        path.unlink(missing_ok=True)


def connect_to_agent(folder: Path) -> socket.socket | None:
    """A connection with the agent that listens in ``folder``; None if there is none.

    Raises:
        PermissionError: the folder is not the user's alone, or another user listens.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with on_error(connected.close):
            check_private(folder)
            with _inside(folder):
                connected.connect(_NAME)
            if not is_same_user(connected):
                raise PermissionError(f"{folder}: another user listens there")
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    return connected


def is_same_user(connected: socket.socket) -> bool:
    """Whether the other end is a process of this user, as far as the system tells.

    Where the system does not tell, the folder's mode alone keeps other users out.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _PEER.size))
    return bool(user == os.getuid())


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Change into ``folder``: the path of a socket must be short."""
    before = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(before)
        os.close(before)
