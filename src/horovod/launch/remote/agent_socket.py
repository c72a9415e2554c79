"""Where a keeper and its bridges meet: a Unix socket in the keeper's folder, for one user alone."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from horovod.launch.remote.job_folder import check_private

__all__ = [
    "BUSY",
    "ENDING",
    "READY",
    "WELCOME",
    "connect_to_agent",
    "is_same_user",
    "listen_at",
    "unlink",
]

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
