"""The messages by which two ranks of different hosts prove to each other who they are, over TCP.

    listener -> dialer   MAGIC, nonce                              40 bytes
    dialer -> listener   MAGIC, nonce, claims, proof as dialer
    listener -> dialer   verdict, proof as listener                33 bytes
    dialer -> listener   TAKE                                       1 byte
    listener -> dialer   TAKE                                       1 byte

Lengths are known in advance, and nothing is interpreted before the proof over it holds. Nonces are
fresh on both sides, roles differ and the claims name both ranks, the link, the address and, as a
digest, the job's context; so no message can be replayed, reflected or used elsewhere. A dialer may
try several addresses at once; TAKE says which connection it keeps, and the answer to it that the
listener knows; a dialer that does not get the answer dials again. Who does not prove that it knows
the secret gets REFUSAL in place of a verdict. What follows is sealed with keys that come from the
secret, both nonces and the claims. Encoding and decoding only.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

from horovod.rendezvous.base.authentication import (
    NONCE_BYTES,
    PROOF_BYTES,
    derive_key,
    is_proof,
    prove,
)
from horovod.rendezvous.base.protection import LinkKeys
from horovod.rendezvous.host.handshake import ProtocolError
from horovod.rendezvous.links.plan import Purpose

__all__ = [
    "CHALLENGE_BYTES",
    "HELLO_REST_BYTES",
    "MAGIC",
    "REFUSAL",
    "TAKE",
    "VERDICT_BYTES",
    "Claims",
    "Connected",
    "Verdict",
    "check_magic",
    "digest_of",
    "encode_challenge",
    "encode_hello",
    "encode_verdict",
    "keys_of_dialer",
    "keys_of_listener",
    "read_hello",
    "read_verdict",
]

MAGIC = b"hvdlink2"  # the last character is the protocol's version
CHALLENGE_BYTES = len(MAGIC) + NONCE_BYTES
VERDICT_BYTES = 1 + PROOF_BYTES
REFUSAL = bytes(VERDICT_BYTES)
TAKE = b"\1"
_DIALER_ROLE = b"horovod link dialer"
_LISTENER_ROLE = b"horovod link listener"
_FROM_DIALER = b"horovod link, dialer to listener"
_FROM_LISTENER = b"horovod link, listener to dialer"
# Purpose, channel, dialer, listener, port, address, digest of the context.
_CLAIMS = struct.Struct("!BIIIH16s32s")
_MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address as an IPv6 one (RFC 4291)
HELLO_REST_BYTES = NONCE_BYTES + _CLAIMS.size + PROOF_BYTES


class Verdict(IntEnum):
    """The listener's answer to a dialer that knows the secret."""

    WELCOME = 1
    OTHER_RANK = 2
    OTHER_MEETING = 3
    NOT_EXPECTED = 4


@dataclass(frozen=True)
class Claims:
    """What the dialer wants: one link of one meeting, at the address that it dialled.

    ``context`` is a digest of everything else that both must agree on.
    """

    purpose: Purpose
    channel: int
    dialer: int
    listener: int
    host: str
    port: int
    context: bytes

    def encode(self) -> bytes:
        """Fixed-size form that is sent and that the proofs cover."""
        return _CLAIMS.pack(
            self.purpose,
            self.channel,
            self.dialer,
            self.listener,
            self.port,
            _packed(self.host),
            self.context,
        )


@dataclass(frozen=True)
class Connected:
    """A connection behind its greeting, and the keys that it alone has."""

    socket: socket.socket
    keys: LinkKeys


def digest_of(*parts: str) -> bytes:
    """A context: 32 bytes that are the same for the same parts."""
    lengths = (f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256("".join(lengths).encode()).digest()


def check_magic(magic: bytes) -> None:
    """The first bytes of either side; ProtocolError for any others."""
    if magic != MAGIC:
        raise ProtocolError("it does not speak this protocol")


def encode_challenge(nonce: bytes) -> bytes:
    """The listener's first message."""
    return MAGIC + nonce


def encode_hello(secret: bytes, claims: Claims, nonce: bytes, listener_nonce: bytes) -> bytes:
    """The dialer's answer to the challenge."""
    stated = nonce + claims.encode()
    return MAGIC + stated + prove(secret, _DIALER_ROLE, MAGIC, listener_nonce, stated)


def read_hello(rest: bytes, secret: bytes, listener_nonce: bytes) -> tuple[Claims, bytes]:
    """Claims and nonce of the dialer, from what follows the magic, once its proof holds."""
    stated, proof = rest[:-PROOF_BYTES], rest[-PROOF_BYTES:]
    if not is_proof(proof, secret, _DIALER_ROLE, MAGIC, listener_nonce, stated):
        raise ProtocolError("it does not know the job's secret")
    nonce = stated[:NONCE_BYTES]
    purpose, channel, dialer, listener, port, host, context = _CLAIMS.unpack(stated[NONCE_BYTES:])
    if purpose not in Purpose.__members__.values():
        raise ProtocolError(f"it wants a connection of purpose {purpose}, which there is not")
    return (
        Claims(Purpose(purpose), channel, dialer, listener, _unpacked(host), port, context),
        nonce,
    )


def encode_verdict(secret: bytes, verdict: Verdict, claims: Claims, *nonces: bytes) -> bytes:
    """The listener's answer; ``nonces`` are the dialer's and its own."""
    stated = bytes((verdict,))
    return stated + prove(secret, _LISTENER_ROLE, MAGIC, *nonces, claims.encode(), stated)


def read_verdict(message: bytes, secret: bytes, claims: Claims, *nonces: bytes) -> Verdict:
    """The verdict, once the listener's proof holds."""
    stated, proof = message[:1], message[1:]
    if not is_proof(proof, secret, _LISTENER_ROLE, MAGIC, *nonces, claims.encode(), stated):
        raise ProtocolError("it does not know the job's secret")
    if stated[0] not in Verdict.__members__.values():
        raise ProtocolError(
            f"its verdict is {stated[0]}; expected {min(Verdict)} to {max(Verdict)}"
        )
    return Verdict(stated[0])


def keys_of_dialer(secret: bytes, claims: Claims, *nonces: bytes) -> LinkKeys:
    """The connection's keys at the dialer's end; ``nonces`` are the dialer's and the listener's."""
    keys = keys_of_listener(secret, claims, *nonces)
    return LinkKeys(send=keys.receive, receive=keys.send)


def keys_of_listener(secret: bytes, claims: Claims, *nonces: bytes) -> LinkKeys:
    """The same keys at the listener's end."""
    agreed = (MAGIC, *nonces, claims.encode())
    return LinkKeys(
        send=derive_key(secret, _FROM_LISTENER, *agreed),
        receive=derive_key(secret, _FROM_DIALER, *agreed),
    )


def _packed(host: str) -> bytes:
    ip = ipaddress.ip_address(host)
    return _MAPPED + ip.packed if ip.version == 4 else ip.packed


def _unpacked(packed: bytes) -> str:
    ip = ipaddress.IPv6Address(packed)
    return str(ip.ipv4_mapped or ip)
