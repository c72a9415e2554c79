"""Unix sockets between processes of one user on one host, with descriptors and credentials."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from horovod.errors import InitError
from horovod.rendezvous.host.handshake import MAX_MESSAGE_BYTES

# The kernel takes 253 (SCM_MAX_FD, unix(7)) in one message.
MAX_FDS_PER_MESSAGE = 250
_UCRED = struct.Struct("=iII")
_FD = struct.Struct("=i")


class Credentials(NamedTuple):
    """Process and user at the other end, as the kernel recorded them at the connect."""

    pid: int
    is_same_user: bool


def new_socket() -> socket.socket:
    """A connection-oriented Unix socket that keeps message borders; close-on-exec."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def credentials(connected: socket.socket) -> Credentials:
    """The process that connected (for the listener) or that listens (for the dialer)."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return Credentials(pid, uid == os.geteuid())


def open_pidfd(pid: int) -> int:
    """A pidfd, or -1 where there are none (other pid namespace, sandbox, no Linux).

    Raises:
        ProcessLookupError: the process has ended.
    """
    if pid <= 0 or not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return -1


def receive(connected: socket.socket, fds: list[int]) -> bytes:
    """One message, empty at the end of the stream; its descriptors are added to ``fds``.

    Raises:
        InitError: descriptors were lost because this process has too many open.
    """
    # socket.recv_fds ignores its flags (seen in CPython 3.11).
    room = socket.CMSG_SPACE(MAX_FDS_PER_MESSAGE * _FD.size)
    message, ancillary, flags, _ = connected.recvmsg(
        MAX_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = len(data) - len(data) % _FD.size
            fds += [fd for (fd,) in _FD.iter_unpack(data[:whole])]
    if flags & socket.MSG_CTRUNC:
        raise InitError("init: too many open files to receive the other ranks' (see ulimit -n)")
    return message
