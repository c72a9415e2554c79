"""The messages by which the ranks of one host connect, over a Unix socket of packets.

The *root* is the host's first rank. ``base/handshake.py`` defines the first three payloads.

    root -> peer   CHALLENGE
    peer -> root   HELLO       states the peer's ``Claims``
    root -> peer   WELCOME     answers with the root's rank and the seconds that it still waits
    root -> peer   MEMBERS     pid of each rank, which pidfds follow; descriptors attached
    root -> peer   MORE        further descriptors
    peer -> root   READY       all descriptors are here
    root -> peer   GO          all ranks are ready
    root -> peer   FAILED      code, failure; may come at any time after the hello

Each message is one byte of kind and a payload. Functions that read one raise ``ProtocolError`` for
anything else than the message that they expect. Nothing here sends or receives.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from horovod.core.base.checked import MOST_PID
from horovod.core.base.ranks import ranks_text
from horovod.errors import InitError
from horovod.rendezvous.base.authentication import PROOF_BYTES, is_proof, prove
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.handshake import Protocol, ProtocolError, Side
from horovod.rendezvous.base.membership import failure_from_bytes, failure_to_bytes
from horovod.rendezvous.store.client import Store

VERSION = 4
MAX_MESSAGE_BYTES = 65536
_MOST_TEXT = 2048  # of a failure, so that it fits into one message
_MOST_RANKS = 4096  # of a failure
_CLAIMS = struct.Struct("!IIQQI")
_WELCOME = struct.Struct("!Id")
_MEMBER = struct.Struct("!IB")
_MOST_SECONDS = 1e9
_FAILURE = b"failure"
# The version is a claim, so that the root can name both versions in its error.
PROTOCOL = Protocol(b"hvdhost", statement_bytes=_CLAIMS.size, answer_bytes=_WELCOME.size)


class Kind(IntEnum):
    """First byte of every message."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    MEMBERS = 4
    MORE = 5
    READY = 6
    GO = 7
    FAILED = 8


class Claims(NamedTuple):
    """The facts that a rank states. All but ``rank`` must be equal on all ranks of the host."""

    rank: int
    size: int
    generation: int
    region_bytes: int
    version: int = VERSION

    def to_bytes(self) -> bytes:
        """The statement of a hello."""
        return _CLAIMS.pack(*self)

    @classmethod
    def from_bytes(cls, statement: bytes) -> Claims:
        """The claims of an authenticated peer, which are not yet compared with anything."""
        return cls(*_CLAIMS.unpack(statement))

    def mismatch(self, peer: Claims, peers: Sequence[int]) -> str | None:
        """How ``peer`` differs from this root, in words; None if they can share a mesh."""
        pairs = (
            ("protocol version", peer.version, self.version),
            ("size", peer.size, self.size),
            ("generation", peer.generation, self.generation),
            ("region of bytes", peer.region_bytes, self.region_bytes),
        )
        for what, theirs, ours in pairs:
            if theirs != ours:
                return f"rank {peer.rank} has {what} {theirs}, rank {self.rank} has {ours}"
        if peer.rank not in peers:
            return f"a process says it is rank {peer.rank}; expected {ranks_text(peers)}"
        return None


class HostGroup(NamedTuple):
    """The ranks of one host that connect. ``members`` begins with the root.

    The others find the root under ``key`` in ``store``. ``with_doorbells``: the world has other
    hosts.
    """

    claims: Claims
    members: Sequence[int]
    with_doorbells: bool
    key: str
    store: Store
    secret: bytes
    deadline: Deadline


class Members(NamedTuple):
    """Pids of the host's ranks in rising order, and for which of them a pidfd is sent."""

    pids: tuple[int, ...]
    has_pidfd: tuple[bool, ...]

    def to_bytes(self) -> bytes:
        """The payload of MEMBERS."""
        return b"".join(map(_MEMBER.pack, self.pids, self.has_pidfd))

    @classmethod
    def from_bytes(cls, payload: bytes, count: int) -> Members:
        """The members of a host of ``count`` ranks."""
        if len(payload) != count * _MEMBER.size:
            raise ProtocolError(f"expected {count} members, got {len(payload)} bytes")
        rows = list(_MEMBER.iter_unpack(payload))
        for pid, has in rows:
            if not (0 < pid <= MOST_PID and has in (0, 1)):
                raise ProtocolError(f"a member has pid {pid} and {has} pidfds; expected 0 or 1")
        return cls(tuple(pid for pid, _ in rows), tuple(bool(has) for _, has in rows))


def message(kind: Kind, payload: bytes = b"") -> bytes:
    """One message."""
    return bytes((kind,)) + payload


def payload_of(message: bytes, kind: Kind) -> bytes:
    """The payload of a message that must be of this kind."""
    if message[:1] != bytes((kind,)):
        found = f"kind {message[0]}" if message else "nothing"
        raise ProtocolError(f"expected {kind.name}, got {found}")
    return message[1:]


def welcome(root: int, seconds: float) -> bytes:
    """The answer of rank ``root`` to a hello: it decides within ``seconds``."""
    return _WELCOME.pack(root, seconds)


def seconds_in(answer: bytes, root: int) -> float:
    """Seconds within which the root decides; it must be rank ``root``."""
    rank, seconds = _WELCOME.unpack(answer)
    if rank != root:
        raise ProtocolError(f"it is rank {rank}; expected rank {root}")
    if not 0.0 <= seconds <= _MOST_SECONDS:
        raise ProtocolError(f"it waits for {seconds} s; expected 0 to {_MOST_SECONDS:g}")
    return float(seconds)


def failed(side: Side, error: InitError) -> bytes:
    """FAILED; long texts are cut."""
    brief = InitError(str(error)[:_MOST_TEXT], ranks=error.ranks[:_MOST_RANKS], host=error.host)
    failure = failure_to_bytes(brief)
    return message(Kind.FAILED, prove(side.key(_FAILURE), _FAILURE, failure) + failure)


def failure_in(message: bytes, side: Side, root: int) -> InitError | None:
    """Why rank ``root`` ends the bootstrap, if this is an authentic FAILED; else None."""
    if message[:1] != bytes((Kind.FAILED,)):
        return None
    code, failure = message[1 : 1 + PROOF_BYTES], message[1 + PROOF_BYTES :]
    if not is_proof(code, side.key(_FAILURE), _FAILURE, failure):
        raise ProtocolError("it does not know the job's secret")
    return failure_from_bytes(failure, f"rank {root}")
