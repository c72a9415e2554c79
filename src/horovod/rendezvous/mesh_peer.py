"""The other ranks' side of the meeting: find rank 0, prove the secret, take what it hands out.

Runs on the thread that called ``init``. Once rank 0 has accepted this rank, rank 0 alone decides
when to give up, so that all ranks end the same way.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from horovod.errors import InitError
from horovod.rendezvous import handshake
from horovod.rendezvous.authentication import new_nonce
from horovod.rendezvous.handshake import Claims, Kind, Members, ProtocolError
from horovod.rendezvous.membership import Deadline, Mesh, close_all
from horovod.rendezvous.peer_socket import credentials, new_socket, receive
from horovod.rendezvous.store import Store

__all__ = ["join_mesh"]

# Beyond rank 0's own deadline: only a stopped rank 0 is that late.
_GRACE_S = 5.0


def join_mesh(claims: Claims, key: str, store: Store, secret: bytes, deadline: Deadline) -> Mesh:
    """Meet rank 0 and through it all others; blocks until rank 0's deadline at most.

    Raises:
        InitError: rank 0 never came, died, or said why the ranks cannot meet.
    """
    try:
        name = store.get(key, deadline.remaining_s())
    except TimeoutError:
        raise _absent_root(claims, deadline) from None
    fds: list[int] = []
    with new_socket() as connected:
        try:
            _connect(connected, name, deadline)
            return _Joining(connected, claims, secret, deadline, fds).join()
        except BaseException as error:
            close_all(fds)
            if isinstance(error, TimeoutError):
                raise _absent_root(claims, deadline) from None
            if isinstance(error, ProtocolError):
                raise InitError(f"init: cannot meet rank 0: {error}") from None
            if isinstance(error, OSError):
                raise InitError(f"init: cannot meet rank 0: {error}") from None
            raise


def _absent_root(claims: Claims, deadline: Deadline) -> InitError:
    return InitError(
        f"init: rank 0 of {claims.size} did not arrive within {deadline.timeout_s:g} s "
        "(HOROVOD_START_TIMEOUT)"
    )


def _connect(connected: socket.socket, name: bytes, deadline: Deadline) -> None:
    # Where the backlog is full a non-blocking connect fails; a blocking one waits for SO_SNDTIMEO.
    seconds, fraction = divmod(max(deadline.remaining_s(), 0.001), 1.0)
    timeval = struct.pack("ll", int(seconds), int(fraction * 1e6))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    try:
        connected.connect(b"\0" + name)
    except BlockingIOError:
        raise TimeoutError from None
    except ConnectionRefusedError:
        raise InitError("init: rank 0 died or gave up before this rank arrived") from None
    if not credentials(connected).is_same_user:
        raise InitError("init: rank 0 belongs to another user; all ranks need the same one")


class _Joining:
    """One connection to rank 0; ``fds`` collects descriptors, owned by the caller until success."""

    def __init__(
        self,
        connected: socket.socket,
        claims: Claims,
        secret: bytes,
        deadline: Deadline,
        fds: list[int],
    ) -> None:
        self._socket = connected
        self._claims = claims
        self._secret = secret
        self._deadline = deadline
        self._nonce = new_nonce()
        self._fds = fds

    def join(self) -> Mesh:
        """The whole conversation."""
        root_nonce = handshake.check_challenge(self._next())
        hello = handshake.encode_hello(self._secret, self._claims, self._nonce, root_nonce)
        self._send(hello)
        self._await_welcome()
        members = handshake.decode_members(self._next(), self._claims.size)
        wanted = 1 + sum(members.has_pidfd)
        while len(self._fds) < wanted:
            if self._next() != bytes((Kind.MORE,)):
                raise ProtocolError("expected further descriptors")
        mesh = self._mesh(members)
        self._send(bytes((Kind.READY,)))
        if self._next() != bytes((Kind.GO,)):
            raise ProtocolError("expected that all ranks are ready")
        return mesh

    def _await_welcome(self) -> None:
        root = Claims(0, self._claims.size, self._claims.generation, self._claims.region_bytes)
        seconds = handshake.wait_of_welcome(self._next(), self._secret, self._nonce, root)
        self._deadline = Deadline(seconds + _GRACE_S)

    def _mesh(self, members: Members) -> Mesh:
        region_fd, *pidfds = self._fds
        found = os.fstat(region_fd).st_size
        if found != self._claims.region_bytes or len(pidfds) != sum(members.has_pidfd):
            raise ProtocolError(
                f"got {len(pidfds)} pidfds and a region of {found} bytes, expected "
                f"{sum(members.has_pidfd)} and {self._claims.region_bytes}"
            )
        rest = iter(pidfds)
        return Mesh(
            region_fd, tuple(next(rest) if has else -1 for has in members.has_pidfd), members.pids
        )

    def _send(self, message: bytes) -> None:
        # If rank 0 has hung up, what it said before is still to be read and tells why.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.send(message)

    def _receive(self) -> bytes:
        self._socket.settimeout(max(self._deadline.remaining_s(), 0.001))
        try:
            return receive(self._socket, self._fds)
        except ConnectionResetError:
            # Rank 0 closed without reading our last message; the error comes before its last one.
            return receive(self._socket, self._fds)

    def _next(self) -> bytes:
        message = self._receive()
        if not message:
            raise InitError(
                "init: rank 0 closed the connection: it died or gave up, or this process does not "
                "know the job's secret"
            )
        text = handshake.text_of_failed(message, self._secret, self._nonce)
        if text is not None:
            raise InitError(text)
        return message
