"""What two ranks of different hosts tell each other in the proof exchange, over TCP.

    base/handshake.py    challenge, hello that states ``Claims``, reply with a ``Verdict``
    dialer -> listener   TAKE   1 byte; not after the verdict TAKEN
    listener -> dialer   TAKE   1 byte; the same

The claims name both ranks, the link, the address and, as a digest, the context; so a message cannot
be used for another link. A dialer may try several addresses at once. With TAKE it chooses one
connection, and the answer says that the listener knows. A dialer without this answer dials again.
That is a round trip more, so the first claims for a link choose their connection, unless the
listener has one already. Its verdict says which. A later TAKE chooses another one. The dialer
numbers its claims, since a TAKE that the network has held back may come after that of a later one.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import struct
from enum import IntEnum
from typing import NamedTuple

from horovod.rendezvous.base.handshake import Protocol, ProtocolError, Side
from horovod.rendezvous.base.protection import LinkKeys
from horovod.rendezvous.links.plan import Purpose

TAKE = b"\1"
# Purpose, channel, dialer, listener, port, address, number, digest of the context.
_CLAIMS = struct.Struct("!BIIIH16sI32s")
_MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address as an IPv6 one (RFC 4291)
PROTOCOL = Protocol(b"hvdlink4", statement_bytes=_CLAIMS.size, answer_bytes=1)


class Verdict(IntEnum):
    """The listener's answer to a dialer that knows the secret."""

    WELCOME = 1
    OTHER_RANK = 2
    OTHER_BOOTSTRAP = 3
    NOT_EXPECTED = 4
    TAKEN = 5  # welcome, and chosen

    @classmethod
    def of(cls, answer: bytes) -> Verdict:
        """The verdict of an authenticated listener. Raises ProtocolError."""
        try:
            return cls(answer[0])
        except ValueError:
            expected = f"{min(cls)} to {max(cls)}"
            raise ProtocolError(f"its verdict is {answer[0]}; expected {expected}") from None


class Claims(NamedTuple):
    """The link that the dialer wants, of one bootstrap, at the address that it dialled.

    ``context`` is a digest of everything else that both ranks must agree on. ``number``: the first
    claims for the link have 1, each further ones one more.
    """

    purpose: Purpose
    channel: int
    dialer: int
    listener: int
    host: str
    port: int
    context: bytes
    number: int = 1

    def to_bytes(self) -> bytes:
        """The statement of a hello."""
        ip = ipaddress.ip_address(self.host)
        packed = _MAPPED + ip.packed if ip.version == 4 else ip.packed
        ranks = (self.dialer, self.listener)
        link = (self.purpose, self.channel, *ranks, self.port, packed)
        return _CLAIMS.pack(*link, self.number, self.context)

    @classmethod
    def from_bytes(cls, statement: bytes) -> Claims:
        """The claims of an authenticated dialer. Raises ProtocolError."""
        purpose, channel, dialer, listener, port, packed, number, context = _CLAIMS.unpack(
            statement
        )
        if purpose not in Purpose.__members__.values():
            raise ProtocolError(f"it wants a connection of unknown purpose {purpose}")
        ip = ipaddress.IPv6Address(packed)
        host = str(ip.ipv4_mapped or ip)
        return cls(Purpose(purpose), channel, dialer, listener, host, port, context, number)


class Connected(NamedTuple):
    """An authenticated connection, and keys that only its two ends have."""

    socket: socket.socket
    keys: LinkKeys


def connected(made: socket.socket, side: Side) -> Connected:
    """The connection on which ``side`` has done its handshake."""
    return Connected(made, LinkKeys(send=side.send_key, receive=side.receive_key))


def digest_of(*parts: str) -> bytes:
    """A context: 32 bytes that are the same for the same parts."""
    lengths = (f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256("".join(lengths).encode()).digest()
