"""The other ranks' side of a host's meeting: find the root, prove the secret, take what it has.

Runs on the thread that called ``init``. Once the root, the host's first rank, has accepted this
one, the root alone decides when to give up, so that all ranks end the same way.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import replace

from horovod.errors import InitError
from horovod.rendezvous.base.authentication import new_nonce
from horovod.rendezvous.base.membership import Deadline, HostMesh, close_all
from horovod.rendezvous.host import handshake
from horovod.rendezvous.host.handshake import Claims, Kind, Members, ProtocolError
from horovod.rendezvous.host.peer_socket import credentials, new_socket, receive
from horovod.rendezvous.store.client import Store

__all__ = ["join_mesh"]

# Beyond the root's own deadline: only a stopped root is that late.
_GRACE_S = 5.0


def join_mesh(
    claims: Claims,
    members: Sequence[int],
    with_bells: bool,
    key: str,
    store: Store,
    secret: bytes,
    deadline: Deadline,
) -> HostMesh:
    """Meet the first of ``members`` and through it all others; blocks until its deadline at most.

    Raises:
        InitError: the root never came, died, or said why the ranks cannot meet.
    """
    root = members[0]
    try:
        name = store.get(key, deadline.remaining_s())
    except TimeoutError:
        raise _absent_root(root, claims, deadline) from None
    fds: list[int] = []
    with new_socket() as connected:
        try:
            _connect(connected, root, name, deadline)
            bells = len(members) if with_bells else 0
            return _Joining(connected, claims, members, bells, secret, deadline, fds).join()
        except BaseException as error:
            close_all(fds)
            if isinstance(error, TimeoutError):
                raise _absent_root(root, claims, deadline) from None
            if isinstance(error, (ProtocolError, OSError)):
                raise InitError(f"init: cannot meet rank {root}: {error}", ranks=[root]) from None
            raise


def _absent_root(root: int, claims: Claims, deadline: Deadline) -> InitError:
    return InitError(
        f"init: rank {root} of {claims.size} did not arrive within {deadline.timeout_s:g} s "
        "(HOROVOD_START_TIMEOUT)",
        ranks=[root],
    )


def _connect(connected: socket.socket, root: int, name: bytes, deadline: Deadline) -> None:
    # Where the backlog is full a non-blocking connect fails; a blocking one waits for SO_SNDTIMEO.
    seconds, fraction = divmod(max(deadline.remaining_s(), 0.001), 1.0)
    timeval = struct.pack("ll", int(seconds), int(fraction * 1e6))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    try:
        connected.connect(b"\0" + name)
    except BlockingIOError:
        raise TimeoutError from None
    except ConnectionRefusedError:
        raise InitError(
            f"init: rank {root} died or gave up before this rank arrived", ranks=[root]
        ) from None
    if not credentials(connected).is_same_user:
        raise InitError(
            f"init: rank {root} belongs to another user; all ranks of a host need the same one",
            ranks=[root],
        )


class _Joining:
    """One connection to the root; ``fds`` collects descriptors, the caller's until success."""

    def __init__(
        self,
        connected: socket.socket,
        claims: Claims,
        members: Sequence[int],
        bells: int,
        secret: bytes,
        deadline: Deadline,
        fds: list[int],
    ) -> None:
        self._socket = connected
        self._claims = claims
        self._ranks = members
        self._bells = bells
        self._secret = secret
        self._deadline = deadline
        self._nonce = new_nonce()
        self._fds = fds

    def join(self) -> HostMesh:
        """The whole conversation."""
        root_nonce = handshake.check_challenge(self._next())
        hello = handshake.encode_hello(self._secret, self._claims, self._nonce, root_nonce)
        self._send(hello)
        self._await_welcome()
        members = handshake.decode_members(self._next(), len(self._ranks))
        wanted = 1 + self._bells + sum(members.has_pidfd)
        while len(self._fds) < wanted:
            if self._next() != bytes((Kind.MORE,)):
                raise ProtocolError("expected further descriptors")
        mesh = self._mesh(members)
        self._send(bytes((Kind.READY,)))
        if self._next() != bytes((Kind.GO,)):
            raise ProtocolError("expected that all ranks are ready")
        return mesh

    def _await_welcome(self) -> None:
        root = replace(self._claims, rank=self._ranks[0])
        seconds = handshake.wait_of_welcome(self._next(), self._secret, self._nonce, root)
        self._deadline = Deadline(seconds + _GRACE_S)

    def _mesh(self, members: Members) -> HostMesh:
        region_fd, *rest = self._fds
        bells, pidfds = rest[: self._bells], rest[self._bells :]
        found = os.fstat(region_fd).st_size
        if found != self._claims.region_bytes or len(pidfds) != sum(members.has_pidfd):
            raise ProtocolError(
                f"got {len(pidfds)} pidfds and a region of {found} bytes, expected "
                f"{sum(members.has_pidfd)} and {self._claims.region_bytes}"
            )
        each = iter(pidfds)
        by_rank = tuple(next(each) if has else -1 for has in members.has_pidfd)
        return HostMesh(region_fd, by_rank, members.pids, tuple(bells))

    def _send(self, message: bytes) -> None:
        # If the root has hung up, what it said before is still to be read and tells why.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.send(message)

    def _receive(self) -> bytes:
        self._socket.settimeout(max(self._deadline.remaining_s(), 0.001))
        try:
            return receive(self._socket, self._fds)
        except ConnectionResetError:
            # The root closed without reading our last message; the error comes before its last one.
            return receive(self._socket, self._fds)

    def _next(self) -> bytes:
        message = self._receive()
        if not message:
            raise InitError(
                f"init: rank {self._ranks[0]} closed the connection: it died or gave up, or this "
                "process does not know the job's secret",
                ranks=[self._ranks[0]],
            )
        failure = handshake.failure_in(message, self._secret, self._nonce, self._ranks[0])
        if failure is not None:
            raise failure
        return message
