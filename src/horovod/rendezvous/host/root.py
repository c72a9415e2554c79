"""The first rank of a host: it authenticates the others and gives them all shared descriptors.

Every rank confirms that it has everything before any rank is told to go. A failure before that is
the same error on all ranks. Runs on the thread that called ``init``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from horovod.core.base.on_error import on_error
from horovod.errors import InitError
from horovod.rendezvous.base.admission import accept_some
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.handshake import Listener, ProtocolError
from horovod.rendezvous.base.membership import HostMesh, as_failure, close_all, misfit
from horovod.rendezvous.host import handshake, peer_socket
from horovod.rendezvous.host.handshake import PROTOCOL, Claims, HostGroup, Kind, Members
from horovod.rendezvous.store.client import Store

_MAX_REPORTS = 20
_HELLO_TIMEOUT_S = 5.0
_ACCEPTS_AT_ONCE = 64
_CHECK_S = 0.25  # between two looks at the store, which may end the bootstrap
# Descriptors in flight count against the sender's RLIMIT_NOFILE (unix(7), ETOOMANYREFS).
_MAX_FDS_IN_FLIGHT = 512


@dataclass(eq=False)
class _Peer:
    """A connection. Its process is authenticated once ``claims`` are there."""

    socket: socket.socket
    pid: int
    side: Listener
    deadline: Deadline  # for its hello
    claims: Claims | None = None
    pidfd: int = -1

    @property
    def name(self) -> str:
        """For messages."""
        return f"rank {self.claims.rank} (pid {self.pid})" if self.claims else f"{self.pid}"

    @property
    def ranks(self) -> list[int]:
        """Its rank, once that is known."""
        return [self.claims.rank] if self.claims else []


def host_mesh(group: HostGroup) -> HostMesh:
    """Wait for the other ranks of this host and connect them; this rank is the root.

    Blocks until the deadline at most.

    Raises:
        InitError: a rank is missing, died or does not fit; the others get the same error.
    """
    claims, members = group.claims, group.members
    fds: list[int] = []
    root = _Root(claims, members[1:], group.secret, group.deadline)
    with on_error(lambda: close_all(fds)), root:
        try:
            if len(members) > 1:
                group.store.set(group.key, root.name.encode())
            root.gather(lambda: _check(group.store, group.key))
            fds.append(make_region(claims.region_bytes))
            if group.with_doorbells:
                fds += [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in members]
            return root.hand_out(fds)
        except BaseException as error:
            root.tell_failure(as_failure(claims.rank, error))
            raise


def _check(store: Store, key: str) -> None:
    """InitError if the store has ended, or has abandoned this bootstrap."""
    with contextlib.suppress(TimeoutError):
        store.get(f"{key}/over", 0.0)  # never set


class _Root:
    """The listening socket of one bootstrap, and the connections to ``peers``."""

    def __init__(
        self, claims: Claims, peers: Sequence[int], secret: bytes, deadline: Deadline
    ) -> None:
        self._claims = claims
        self._peers = peers
        self._secret = secret
        self._deadline = deadline
        self._unauthenticated: set[_Peer] = set()
        self._reported = 0
        self._members: dict[int, _Peer] = {}
        self._refused: list[_Peer] = []
        self._selector = selectors.DefaultSelector()
        self._listener = peer_socket.new_socket()
        # An abstract name ends with its socket. A random one cannot be taken in advance.
        self.name = f"horovod-{os.urandom(16).hex()}"

    def __enter__(self) -> _Root:
        with on_error(self.__exit__):
            self._listener.bind(f"\0{self.name}")
            self._listener.listen(len(self._peers) + 128)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._listener.close()
        for peer in (*self._unauthenticated, *self._members.values(), *self._refused):
            peer.socket.close()
            close_all((peer.pidfd,))

    def gather(self, check: Callable[[], None]) -> None:
        """Accept and authenticate until all ranks are here; ``check`` may end the wait."""
        while len(self._members) < len(self._peers):
            if self._deadline.remaining_s() <= 0:
                missing = set(self._peers) - set(self._members)
                raise self._deadline.missed_by(missing, self._claims.size)
            waits = [peer.deadline.remaining_s() for peer in self._unauthenticated]
            wait_s = min([*waits, self._deadline.remaining_s(), _CHECK_S])
            events = self._selector.select(wait_s)
            if not events:
                check()
            for key, _ in events:
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.data)
            for late in [peer for peer in self._unauthenticated if peer.deadline.has_passed]:
                self._drop(late, f"no proof of the secret within {_HELLO_TIMEOUT_S:g} s")

    def hand_out(self, shared: list[int]) -> HostMesh:
        """Send every member its descriptors, wait until all have them, then tell all to go.

        ``shared``: the descriptors of the region and the doorbells.
        """
        peers = [self._members[rank] for rank in self._peers]
        own_pidfd = peer_socket.open_pidfd(os.getpid())
        try:
            pidfds = (own_pidfd, *(peer.pidfd for peer in peers))
            pids = (os.getpid(), *(peer.pid for peer in peers))
            at_once = max(1, _MAX_FDS_IN_FLIGHT // (len(shared) + len(pidfds)))
            for first in range(0, len(peers), at_once):
                batch = peers[first : first + at_once]
                for position, peer in enumerate(batch, first + 1):
                    others = [*pidfds[:position], -1, *pidfds[position + 1 :]]
                    self._send_descriptors(peer, shared, others, pids)
                self._wait_until_ready(set(batch))
        finally:
            close_all((own_pidfd,))
        for peer in peers:
            # A rank that died now is noticed through its pidfd; the others must not wait for it.
            with contextlib.suppress(OSError):
                peer.socket.send(handshake.message(Kind.GO))
        for peer in peers:
            peer.pidfd = -1  # the mesh owns it now
        return HostMesh(shared[0], (-1, *pidfds[1:]), pids, tuple(shared[1:]))

    def tell_failure(self, error: InitError) -> None:
        """Send the reason to every authenticated peer that is still connected."""
        for peer in (*self._members.values(), *self._refused):
            with contextlib.suppress(OSError):
                peer.socket.send(handshake.failed(peer.side, error))

    def _accept(self) -> None:
        try:
            for accepted, _ in accept_some(self._listener, _ACCEPTS_AT_ONCE):
                self._welcome(accepted)
        except OSError as error:
            raise InitError(
                f"init: rank {self._claims.rank} cannot accept the other ranks: {error}"
            ) from None

    def _welcome(self, accepted: socket.socket) -> None:
        process = peer_socket.credentials(accepted)
        side = Listener(PROTOCOL, self._secret)
        peer = _Peer(accepted, process.pid, side, Deadline(_HELLO_TIMEOUT_S))
        self._unauthenticated.add(peer)
        self._selector.register(accepted, selectors.EVENT_READ, peer)
        if not process.is_same_user:
            self._drop(peer, "it belongs to another user")
            return
        try:
            accepted.send(handshake.message(Kind.CHALLENGE, side.opening))
        except OSError as error:
            self._drop(peer, str(error))

    def _read(self, peer: _Peer) -> None:
        if peer.claims is not None:
            self._expect(peer, None)
            return
        try:
            message = self._receive(peer)
            if not message:
                raise ProtocolError("it left without proving that it knows the job's secret")
            hello = handshake.payload_of(message, Kind.HELLO)
            claims = Claims.from_bytes(peer.side.read_hello(hello))
        except (ProtocolError, OSError) as error:
            self._drop(peer, str(error))
        else:
            self._admit(peer, claims)

    def _admit(self, peer: _Peer, claims: Claims) -> None:
        """Add an authentic process of this job; from now on its failures fail all ranks."""
        peer.claims = claims
        rank = claims.rank
        mismatch = self._claims.mismatch(claims, self._peers)
        if mismatch is None and rank in self._members:
            mismatch = f"two processes are rank {rank}: pids {self._members[rank].pid}, {peer.pid}"
        self._unauthenticated.discard(peer)
        if mismatch is not None:
            self._refused.append(peer)
            raise misfit(mismatch, rank)
        self._members[rank] = peer
        self._watch(peer)
        welcome = handshake.welcome(self._claims.rank, self._deadline.remaining_s())
        self._send(peer, handshake.message(Kind.WELCOME, peer.side.reply(welcome)), [])

    def _watch(self, peer: _Peer) -> None:
        try:
            peer.pidfd = peer_socket.open_pidfd(peer.pid)
            # The peer has this pid for certain while it holds the connection.
            if not peer.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                raise ProcessLookupError
        except BlockingIOError:
            return
        except OSError:
            raise self._lost_error(peer) from None

    def _wait_until_ready(self, waiting: set[_Peer]) -> None:
        while waiting:
            remaining_s = self._deadline.remaining_s()
            if remaining_s <= 0:
                silent = [rank for peer in waiting for rank in peer.ranks]
                raise self._deadline.missed_by(silent, self._claims.size, "stopped answering")
            for key, _ in self._selector.select(remaining_s):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data in waiting:
                    self._expect(key.data, Kind.READY)
                    waiting.discard(key.data)
                else:
                    self._read(key.data)

    def _send_descriptors(
        self, peer: _Peer, shared: list[int], pidfds: list[int], pids: tuple[int, ...]
    ) -> None:
        """``pidfds`` has -1 for the peer itself."""
        has_pidfd = tuple(fd >= 0 for fd in pidfds)
        fds = [*shared, *(fd for fd in pidfds if fd >= 0)]
        message = handshake.message(Kind.MEMBERS, Members(pids, has_pidfd).to_bytes())
        for first in range(0, len(fds), peer_socket.MAX_FDS_PER_MESSAGE):
            self._send(peer, message, fds[first : first + peer_socket.MAX_FDS_PER_MESSAGE])
            message = handshake.message(Kind.MORE)

    def _send(self, peer: _Peer, message: bytes, fds: list[int]) -> None:
        try:
            socket.send_fds(peer.socket, [message], fds)
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost_error(peer) from None
        except OSError as error:
            raise InitError(f"init: cannot reach {peer.name}: {error}", ranks=peer.ranks) from None

    def _expect(self, member: _Peer, kind: Kind | None) -> None:
        """The member's next message must be ``kind``; None: it must not send any."""
        try:
            message = self._receive(member)
        except OSError:
            message = b""
        if not message:
            raise self._lost_error(member)
        if kind is None or message != handshake.message(kind):
            raise InitError(
                f"init: {member.name} broke the protocol: it sent kind {message[0]}",
                ranks=member.ranks,
            )

    def _receive(self, peer: _Peer) -> bytes:
        """One message; descriptors that come with it are closed, since the root expects none."""
        fds: list[int] = []
        try:
            return peer_socket.receive(peer.socket, fds)
        finally:
            close_all(fds)

    def _drop(self, peer: _Peer, reason: str) -> None:
        self._unauthenticated.discard(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()
        self._reported += 1
        if self._reported <= _MAX_REPORTS:  # any process of this machine can connect repeatedly
            sys.stderr.write(f"horovod: init: dropped a connection from pid {peer.pid}: {reason}\n")

    def _lost_error(self, peer: _Peer) -> InitError:
        return InitError(
            f"init: {peer.name} died or gave up before all ranks had met", ranks=peer.ranks
        )


# The shared memory that all ranks of a host map. It has no name, so nothing is left behind.

_SHM = "/dev/shm"
_CLAIMED_BYTES = 192 * 1024 * 1024


def make_region(size_bytes: int) -> int:
    """A descriptor of ``size_bytes`` of zeroed, sparse shared memory, close-on-exec.

    The caller closes it.

    Raises:
        InitError: neither an anonymous region nor a file in /dev/shm could be made.
    """
    try:
        return _anonymous(size_bytes)
    except (OSError, AttributeError) as first:  # refused by a sandbox, or not Linux
        try:
            return _unlinked_file(size_bytes)
        except OSError as second:
            way_out = ""
            if second.errno == errno.ENOSPC:
                way_out = f"; make {_SHM} larger, in a container by docker run --shm-size=1g"
            raise InitError(
                f"init: cannot make memory that the ranks of this host share, of which "
                f"{_CLAIMED_BYTES >> 20} MiB are taken at first and {size_bytes} bytes reserved: "
                f"memfd_create: {first}; file in {_SHM}: {second}{way_out}"
            ) from None


def _anonymous(size_bytes: int) -> int:
    fd = os.memfd_create("horovod", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with on_error(lambda: os.close(fd)):
        os.ftruncate(fd, size_bytes)
    # Without seals a process could shrink it under a mapping (SIGBUS). A sandbox may forbid them.
    with contextlib.suppress(OSError):
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _unlinked_file(size_bytes: int) -> int:
    path = f"{_SHM}/horovod-{os.urandom(16).hex()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    with on_error(lambda: os.close(fd)):
        os.unlink(path)
        os.ftruncate(fd, size_bytes)
        # Allocate it now: a small /dev/shm is an error here instead of SIGBUS later.
        os.posix_fallocate(fd, 0, min(size_bytes, _CLAIMED_BYTES))
    return fd
