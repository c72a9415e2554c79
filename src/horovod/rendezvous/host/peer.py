"""The other ranks of a host: they find the root, prove the secret and receive the descriptors.

The root is the host's first rank. Once it has accepted this rank, it alone decides when to give up,
so that all ranks end the same way. Runs on the thread that called ``init``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from horovod.core.base.on_error import on_error
from horovod.errors import InitError
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.handshake import Dialer, ProtocolError
from horovod.rendezvous.base.membership import HostMesh, close_all
from horovod.rendezvous.host import handshake
from horovod.rendezvous.host.handshake import PROTOCOL, HostGroup, Kind, Members
from horovod.rendezvous.host.peer_socket import credentials, new_socket, receive

# After the root's own deadline: only a stopped root is that late.
_GRACE_S = 5.0


def join_mesh(group: HostGroup) -> HostMesh:
    """Connect to the root and get from it what all ranks share.

    Blocks until the deadline of this rank or the root at most.

    Raises:
        InitError: the root did not arrive, died, or said why it gives up.
    """
    root = group.members[0]
    fds: list[int] = []
    try:
        name = group.store.get(group.key, group.deadline.remaining_s())
        with on_error(lambda: close_all(fds)), new_socket() as connected:
            _connect(connected, root, name, group.deadline)
            return _Joining(connected, group, fds).join()
    except TimeoutError:
        raise group.deadline.missed_by([root], group.claims.size) from None
    except (ProtocolError, OSError) as error:
        text = f"init: cannot connect to rank {root}: {error}"
        raise InitError(text, ranks=[root]) from None


def _connect(connected: socket.socket, root: int, name: bytes, deadline: Deadline) -> None:
    # If the backlog is full, a non-blocking connect fails; a blocking one waits for SO_SNDTIMEO.
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
    """One connection to the root. The caller closes the descriptors in ``fds`` after an error."""

    def __init__(self, connected: socket.socket, group: HostGroup, fds: list[int]) -> None:
        self._socket = connected
        self._claims = group.claims
        self._ranks = group.members
        self._doorbells = len(group.members) if group.with_doorbells else 0
        self._side = Dialer(PROTOCOL, group.secret)
        self._deadline = group.deadline
        self._fds = fds

    def join(self) -> HostMesh:
        """The whole exchange."""
        challenge = self._payload(Kind.CHALLENGE)
        hello = self._side.hello(challenge, self._claims.to_bytes())
        self._send(handshake.message(Kind.HELLO, hello))
        answer = self._side.read_reply(self._payload(Kind.WELCOME))
        self._deadline = Deadline(handshake.seconds_in(answer, self._ranks[0]) + _GRACE_S)
        members = Members.from_bytes(self._payload(Kind.MEMBERS), len(self._ranks))
        wanted = 1 + self._doorbells + sum(members.has_pidfd)
        while len(self._fds) < wanted:
            self._payload(Kind.MORE)
        mesh = self._mesh(members)
        self._send(handshake.message(Kind.READY))
        self._payload(Kind.GO)
        return mesh

    def _mesh(self, members: Members) -> HostMesh:
        region_fd, *rest = self._fds
        doorbells, pidfds = rest[: self._doorbells], rest[self._doorbells :]
        found = os.fstat(region_fd).st_size
        if found != self._claims.region_bytes or len(pidfds) != sum(members.has_pidfd):
            raise ProtocolError(
                f"got {len(pidfds)} pidfds and a region of {found} bytes, expected "
                f"{sum(members.has_pidfd)} and {self._claims.region_bytes}"
            )
        each = iter(pidfds)
        by_rank = tuple(next(each) if has else -1 for has in members.has_pidfd)
        return HostMesh(region_fd, by_rank, members.pids, tuple(doorbells))

    def _send(self, message: bytes) -> None:
        # If the root has closed the connection, its last message can still be read and says why.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.send(message)

    def _receive(self) -> bytes:
        self._socket.settimeout(max(self._deadline.remaining_s(), 0.001))
        try:
            return receive(self._socket, self._fds)
        except ConnectionResetError:
            # The root closed before it read our last message. Its own last message comes next.
            return receive(self._socket, self._fds)

    def _payload(self, kind: Kind) -> bytes:
        message = self._receive()
        if not message:
            raise InitError(
                f"init: rank {self._ranks[0]} closed the connection: it died or gave up, or this "
                "process does not know the job's secret",
                ranks=[self._ranks[0]],
            )
        failure = handshake.failure_in(message, self._side, self._ranks[0])
        if failure is not None:
            raise failure
        return handshake.payload_of(message, kind)
