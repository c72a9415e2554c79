"""How workers get the job's secret from a launcher of others, which gives them the original's
variables and does not know of a secret.

Its ``RendezvousServer`` is ours, and hands the secret to processes of the same user on the same
machine, outside of other containers: over an abstract Unix socket named after the store's port,
where both sides ask the kernel who is at the other end. A process gets it only if it could read it
from the launcher's memory as well.
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

from horovod.errors import InitError
from horovod.rendezvous.host.peer_socket import credentials, new_socket

__all__ = ["SecretSocket", "ask_for_secret"]

_REST_S = 0.1  # without descriptors
_BACKLOG = 1024
_MOST_BYTES = 1024
_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it yet


class SecretSocket:
    """Serves ``secret`` for the store at ``port`` until ``close``, on a thread of its own.

    Raises:
        OSError: another process has the name, or there are no such sockets here.
    """

    def __init__(self, port: int, secret: bytes) -> None:
        if sys.platform != "linux":
            raise OSError("abstract Unix sockets are Linux's")
        self._secret = secret
        self._is_closed = threading.Event()
        self._listener = new_socket()
        try:
            self._listener.bind(_name(port))
            self._listener.listen(_BACKLOG)
        except OSError:
            self._listener.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="horovod-secret", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nobody gets it any more; may be repeated."""
        self._is_closed.set()
        with contextlib.suppress(OSError):  # ends a wait in accept, which close alone does not
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
                if _is_one_of_us(connected):
                    connected.send(self._secret, socket.MSG_DONTWAIT)


def ask_for_secret(port: int, timeout_s: float) -> bytes:
    """The secret of the store at ``port``; empty if no local process serves it to this user.

    Blocks for ``timeout_s`` at most.

    Raises:
        InitError: another user's process answers in its place, or none in time.
    """
    if sys.platform != "linux":
        return b""
    with new_socket() as connected:
        _limit_waits(connected, timeout_s)
        try:
            connected.connect(_name(port))
            if not _is_one_of_us(connected):
                raise InitError(
                    f"init: somebody else answers for the launcher's store at port {port}; give "
                    "each worker the launcher's _HOROVOD_SECRET_KEY (docs/security.md)"
                )
            return connected.recv(_MOST_BYTES)
        except BlockingIOError:
            raise InitError(
                f"init: the launcher, whose store is at port {port}, has not told the job's secret "
                f"within {timeout_s:g} s (HOROVOD_START_TIMEOUT)"
            ) from None
        except OSError:  # no such socket
            return b""


def _limit_waits(waiting: socket.socket, timeout_s: float) -> None:
    """Python's own timeout would not wait at all for a place among those who connect."""
    limit = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6) or 1)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        waiting.setsockopt(socket.SOL_SOCKET, option, limit)


def _is_one_of_us(connected: socket.socket) -> bool:
    """Whether it is this user's, and in the namespaces where its numbers mean the same."""
    other = credentials(connected)
    return (
        other.is_same_user
        and other.pid > 0
        and _namespaces(other.pid) == _namespaces("self")
        and not _has_ended(connected)
    )


def _has_ended(connected: socket.socket) -> bool:
    """Whether the process at the other end has, so that its number may be another's now."""
    try:
        pidfd = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        return error.errno != errno.ENOPROTOOPT  # then this kernel cannot say
    try:
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        return bool(waiting.poll(0))
    finally:
        os.close(pidfd)


def _namespaces(pid: int | str) -> list[str] | None:
    try:
        return [os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("user", "pid")]
    except OSError:  # it has ended, or is protected from this process
        return None


def _name(port: int) -> str:
    return f"\0horovod-secret-{os.geteuid()}-{port}"
