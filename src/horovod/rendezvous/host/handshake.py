"""The messages by which the ranks of a host meet, over a Unix socket that keeps message borders.

The *root* is the first of them, rank 0 of a world that has one host only.

    root -> peer   CHALLENGE   magic, version, nonce
    peer -> root   HELLO       magic, version, nonce, claims, proof as peer
    root -> peer   WELCOME     proof as root, seconds that the root still waits
    root -> peer   MEMBERS     pid of every rank here, which pidfds follow; descriptors attached
    root -> peer   MORE        further descriptors
    peer -> root   READY       all descriptors are here
    root -> peer   GO          all ranks are ready
    root -> peer   FAILED      proof as root over the failure, failure; may come at any point

Each message is one byte of kind and a payload. Encoding and decoding only; ``mesh`` moves them.
Decoders raise ``ProtocolError`` for anything that is not the message they expect.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from horovod.core.base.checked import MOST_PID
from horovod.core.base.ranks import ranks_text
from horovod.errors import InitError
from horovod.rendezvous.base.authentication import NONCE_BYTES, PROOF_BYTES, is_proof, prove
from horovod.rendezvous.base.failure import decode_failure, encode_failure

__all__ = [
    "MAX_MESSAGE_BYTES",
    "VERSION",
    "Claims",
    "Hello",
    "Kind",
    "Members",
    "ProtocolError",
    "check_challenge",
    "decode_hello",
    "decode_members",
    "describe_mismatch",
    "encode_challenge",
    "encode_failed",
    "encode_hello",
    "encode_members",
    "encode_welcome",
    "failure_in",
    "wait_of_welcome",
]

VERSION = 3
MAX_MESSAGE_BYTES = 65536
_MOST_TEXT = 2048  # so much of a failure fits into one message,
_MOST_RANKS = 4096  # and so many of the host's ranks
_MAGIC = b"hvdmesh"
_PEER_ROLE = b"horovod mesh peer"
_ROOT_ROLE = b"horovod mesh root"
_FAILED_ROLE = b"horovod mesh failed"
_VERSION = struct.Struct("!I")
_CLAIMS = struct.Struct("!IIQQ")
_SECONDS = struct.Struct("!d")
_MEMBER = struct.Struct("!IB")
_MOST_SECONDS = 1e9


class ProtocolError(Exception):
    """Bytes that are not what the protocol says comes now, or a proof that does not hold."""


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


@dataclass(frozen=True)
class Claims:
    """What a rank believes; all but ``rank`` must be the same everywhere on the host."""

    rank: int
    size: int
    generation: int
    region_bytes: int

    def encode(self) -> bytes:
        """Fixed-size form that is sent and that the proofs cover."""
        return _CLAIMS.pack(self.rank, self.size, self.generation, self.region_bytes)


@dataclass(frozen=True)
class Hello:
    """A peer's hello whose proof has been verified."""

    claims: Claims
    version: int
    nonce: bytes


@dataclass(frozen=True)
class Members:
    """Pids of the host's ranks in rising order, and for which of them a pidfd is sent."""

    pids: tuple[int, ...]
    has_pidfd: tuple[bool, ...]


def encode_challenge(nonce: bytes, version: int = VERSION) -> bytes:
    """CHALLENGE."""
    return _message(Kind.CHALLENGE, _MAGIC + _VERSION.pack(version) + nonce)


def check_challenge(message: bytes) -> bytes:
    """The root's nonce; a root of another version is answered all the same and tells."""
    payload = _payload(message, Kind.CHALLENGE, len(_MAGIC) + _VERSION.size + NONCE_BYTES)
    if not payload.startswith(_MAGIC):
        raise ProtocolError("no challenge of a mesh")
    return payload[len(_MAGIC) + _VERSION.size :]


def encode_hello(
    secret: bytes, claims: Claims, nonce: bytes, root_nonce: bytes, version: int = VERSION
) -> bytes:
    """HELLO."""
    stated = _MAGIC + _VERSION.pack(version) + nonce + claims.encode()
    return _message(Kind.HELLO, stated + prove(secret, _PEER_ROLE, root_nonce, stated))


def decode_hello(message: bytes, secret: bytes, root_nonce: bytes) -> Hello:
    """The hello, once its proof holds; what it claims is not yet compared with anything."""
    stated_bytes = len(_MAGIC) + _VERSION.size + NONCE_BYTES + _CLAIMS.size
    payload = _payload(message, Kind.HELLO, stated_bytes + PROOF_BYTES)
    stated, proof = payload[:stated_bytes], payload[stated_bytes:]
    if not is_proof(proof, secret, _PEER_ROLE, root_nonce, stated):
        raise ProtocolError("it does not know the job's secret")
    (version,) = _VERSION.unpack_from(stated, len(_MAGIC))
    nonce_at = len(_MAGIC) + _VERSION.size
    claims = Claims(*_CLAIMS.unpack_from(stated, nonce_at + NONCE_BYTES))
    return Hello(claims, version, stated[nonce_at : nonce_at + NONCE_BYTES])


def describe_mismatch(
    root: Claims, peer: Claims, peer_version: int, peers: Sequence[int]
) -> str | None:
    """In what ``peer`` differs from the root, in words; None when they can meet."""
    pairs = (
        ("protocol version", peer_version, VERSION),
        ("size", peer.size, root.size),
        ("generation", peer.generation, root.generation),
        ("region of bytes", peer.region_bytes, root.region_bytes),
    )
    for what, theirs, ours in pairs:
        if theirs != ours:
            return f"rank {peer.rank} has {what} {theirs}, rank {root.rank} has {ours}"
    if peer.rank not in peers:
        return f"a process says it is rank {peer.rank}; expected {ranks_text(peers)}"
    return None


def encode_welcome(secret: bytes, nonce: bytes, root: Claims, seconds: float) -> bytes:
    """WELCOME, to the peer that sent ``nonce``; the root decides within ``seconds``."""
    stated = _SECONDS.pack(seconds)
    proof = prove(secret, _ROOT_ROLE, nonce, root.encode(), stated)
    return _message(Kind.WELCOME, stated + proof)


def wait_of_welcome(message: bytes, secret: bytes, nonce: bytes, root: Claims) -> float:
    """Seconds within which the root decides, once the proof holds."""
    payload = _payload(message, Kind.WELCOME, _SECONDS.size + PROOF_BYTES)
    stated, proof = payload[: _SECONDS.size], payload[_SECONDS.size :]
    if not is_proof(proof, secret, _ROOT_ROLE, nonce, root.encode(), stated):
        raise ProtocolError("it does not know the job's secret")
    seconds = float(_SECONDS.unpack(stated)[0])
    if not 0.0 <= seconds <= _MOST_SECONDS:
        raise ProtocolError(f"it waits for {seconds} s; expected 0 to {_MOST_SECONDS:g}")
    return seconds


def encode_members(members: Members) -> bytes:
    """MEMBERS."""
    rows = zip(members.pids, members.has_pidfd, strict=True)
    return _message(Kind.MEMBERS, b"".join(_MEMBER.pack(pid, has) for pid, has in rows))


def decode_members(message: bytes, count: int) -> Members:
    """Pids and pidfd flags of ``count`` ranks."""
    payload = _payload(message, Kind.MEMBERS, count * _MEMBER.size)
    rows = list(_MEMBER.iter_unpack(payload))
    for pid, has in rows:
        if not (0 < pid <= MOST_PID and has in (0, 1)):
            raise ProtocolError(f"a rank of it has pid {pid} and {has} pidfds; expected 0 or 1")
    return Members(tuple(pid for pid, _ in rows), tuple(bool(has) for _, has in rows))


def encode_failed(secret: bytes, nonce: bytes, error: InitError) -> bytes:
    """FAILED, to the peer that sent ``nonce``; long texts are cut."""
    brief = InitError(str(error)[:_MOST_TEXT], ranks=error.ranks[:_MOST_RANKS], host=error.host)
    stated = encode_failure(brief)
    return _message(Kind.FAILED, prove(secret, _FAILED_ROLE, nonce, stated) + stated)


def failure_in(message: bytes, secret: bytes, nonce: bytes, root: int) -> InitError | None:
    """Why rank ``root`` ends the meeting, if this is a FAILED whose proof holds; else None."""
    if message[:1] != bytes((Kind.FAILED,)) or len(message) < 1 + PROOF_BYTES:
        return None
    proof, stated = message[1 : 1 + PROOF_BYTES], message[1 + PROOF_BYTES :]
    if not is_proof(proof, secret, _FAILED_ROLE, nonce, stated):
        raise ProtocolError("it does not know the job's secret")
    return decode_failure(stated, f"rank {root}")


def _message(kind: Kind, payload: bytes) -> bytes:
    return bytes((kind,)) + payload


def _payload(message: bytes, kind: Kind, payload_bytes: int) -> bytes:
    if message[:1] != bytes((kind,)) or len(message) != 1 + payload_bytes:
        found = f"kind {message[0]}" if message else "nothing"
        raise ProtocolError(f"expected {kind.name} of {payload_bytes} bytes, got {found}")
    return message[1:]
