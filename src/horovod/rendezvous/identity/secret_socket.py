"""How workers of another program's launcher get the job's secret.

Such a launcher gives workers the public variables and knows no secret. Its ``RendezvousServer`` is
ours. It gives the secret to processes of the same user in the same namespaces, over an abstract
Unix socket named after the store's port. Both sides ask the kernel which process is at the other
end. A process gets the secret only if it could also read it from the launcher's memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import sys
import threading

from horovod.core.base.on_error import on_error
from horovod.errors import InitError
from horovod.rendezvous.host.peer_socket import credentials, new_socket

_REST_S = 0.1  # when no descriptor is left
_BACKLOG = 1024
_MOST_BYTES = 1024
_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it yet


class SecretSocket:
    """Serves ``secret`` for the store at ``port`` until ``close``, on its own thread.

    Raises:
        OSError: another process has the name, or this system has no such sockets.
    """

    def __init__(self, port: int, secret: bytes) -> None:
        if sys.platform != "linux":
            raise OSError("abstract Unix sockets are Linux's")
        self._secret = secret
        self._is_closed = threading.Event()
        self._listener = new_socket()
        with on_error(self._listener.close):
            self._listener.bind(_name(port))
            self._listener.listen(_BACKLOG)
        self._thread = threading.Thread(target=self._serve, name="horovod-secret", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and the socket; may be repeated."""
        self._is_closed.set()
        with contextlib.suppress(OSError):  # ends accept; close alone would not
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while not self._is_closed.is_set():
            try:
                connected, _ = self._listener.accept()
            except OSError:
                self._is_closed.wait(_REST_S)
                continue
            with connected, contextlib.suppress(OSError):  # the other end has closed
                if _is_same_user(connected):
                    connected.send(self._secret, socket.MSG_DONTWAIT)


def ask_for_secret(port: int, timeout_s: float) -> bytes:
    """The secret of the store at ``port``; empty if no process of this host serves it to this user.

    Blocks for ``timeout_s`` at most.

    Raises:
        InitError: another user's process answers, or none answers in time.
    """
    if sys.platform != "linux":
        return b""
    with new_socket() as connected:
        _limit_waits(connected, timeout_s)
        try:
            connected.connect(_name(port))
            if not _is_same_user(connected):
                raise InitError(
                    f"init: another user's process answers for the launcher's store at port {port};"
                    " give each worker the launcher's _HOROVOD_SECRET_KEY (docs/security.md)"
                )
            return connected.recv(_MOST_BYTES)
        except BlockingIOError:
            raise InitError(
                f"init: the launcher with the store at port {port} has not sent the job's secret "
                f"within {timeout_s:g} s (HOROVOD_START_TIMEOUT)"
            ) from None
        except OSError:  # no such socket
            return b""


def _limit_waits(waiting: socket.socket, timeout_s: float) -> None:
    """Limit a socket's waits. With Python's own timeout a connect fails if the backlog is full."""
    limit = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6) or 1)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        waiting.setsockopt(socket.SOL_SOCKET, option, limit)


def _is_same_user(connected: socket.socket) -> bool:
    """Whether the other process has the same user and namespaces, so that its ids mean the same."""
    other = credentials(connected)
    return (
        other.is_same_user
        and other.pid > 0
        and _namespaces(other.pid) == _namespaces("self")
        and not _has_ended(connected)
    )


def _has_ended(connected: socket.socket) -> bool:
    """Whether the process at the other end has ended, so that another one may have its pid."""
    try:
        pidfd = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        return error.errno != errno.ENOPROTOOPT  # ENOPROTOOPT: an older kernel
    try:
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        return bool(waiting.poll(0))
    finally:
        os.close(pidfd)


def _namespaces(pid: int | str) -> list[str] | None:
    try:
        return [os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("user", "pid")]
    except OSError:  # it has ended, or this process may not look
        return None


def _name(port: int) -> str:
    return f"\0horovod-secret-{os.geteuid()}-{port}"
