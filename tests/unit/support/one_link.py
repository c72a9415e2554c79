"""Two ranks that connect: rank 0 listens, and rank 1 dials."""

from __future__ import annotations

import errno
import socket
import struct
import threading
from collections import Counter
from collections.abc import Sequence

from loopback import new_loopback
from raw_sockets import read_exactly
from worlds import SECRET

from horovod.rendezvous.base.handshake import Dialer
from horovod.rendezvous.base.interfaces import Address, Route
from horovod.rendezvous.links.connector import Connector, Stream
from horovod.rendezvous.links.dialing import PeerDial, RankDialer
from horovod.rendezvous.links.handshake import PROTOCOL, Claims
from horovod.rendezvous.links.listening import LinkListener
from horovod.rendezvous.links.plan import Link, Purpose

CONTEXT = b"c" * 32
LINK_TO_0 = Link(Purpose.DATA, 0, 3, 0)  # as rank 1 sees it
LINK_TO_1 = Link(Purpose.DATA, 1, 3, 1)  # as rank 0 sees it


class Rank0:
    """Rank 0, which expects rank 1, on its own thread."""

    def __init__(self, host: str | None = None, cuts: Sequence[int] = ()) -> None:
        host = host or new_loopback()
        self.connector = CuttingConnector(cuts)
        self.listener = LinkListener(self.connector, 0, SECRET, [Address(host, 8, "lo")])
        self.listener.expect([LINK_TO_1], CONTEXT, {"127.0.0.9"})
        self.route = Route(host, self.listener.listening[0].port)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_over.is_set():
            self.connector.step(0.02)

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(self.route.target[:2], 30, (source, 0))

    def let_in(self, cuts: Sequence[int] = ()) -> None:
        """Rank 1 dials, and only its connection is accepted."""
        dialled = dial(self.route, cuts=cuts)
        assert not dialled.missing, dialled.reasons
        self._stop()
        assert self.listener.is_complete
        (arrived,) = self.listener.arrived.values()
        (made,) = dialled.made.values()
        with arrived.socket, made.socket:
            assert arrived.socket.getpeername() == made.socket.getsockname()
            # No byte after the handshake has been read.
            made.socket.send(b"first")
            arrived.socket.setblocking(True)
            assert arrived.socket.recv(100) == b"first"
        assert (made.keys.send, made.keys.receive) == (arrived.keys.receive, arrived.keys.send)
        assert made.keys.send != made.keys.receive
        self.keys = made.keys

    def _stop(self) -> None:
        self._is_over.set()
        self._thread.join(30)

    def close(self) -> None:
        self._stop()
        for arrived in self.listener.arrived.values():
            arrived.socket.close()
        self.listener.close()
        self.connector.close()


def dial(
    *routes: Route,
    secret: bytes = SECRET,
    rank: int = 1,
    link: Link = LINK_TO_0,
    context: bytes = CONTEXT,
    cuts: Sequence[int] = (),
) -> PeerDial:
    connector = CuttingConnector(cuts)
    dialled = PeerDial(RankDialer(connector, rank, secret, context), [link], routes)
    while not dialled.is_settled:
        dialled.advance()
        connector.step(min(dialled.wait_s(), 0.1))
    connector.close()
    return dialled


class CuttingConnector(Connector):
    """Resets a connection at its n-th piece of a message, for the first connections."""

    def __init__(self, pieces: Sequence[int]) -> None:
        super().__init__()
        self.pieces = list(pieces)
        self._read_so_far: Counter[Stream] = Counter()

    def _read(self, stream: Stream) -> None:
        self._read_so_far[stream] += 1
        if self.pieces and self._read_so_far[stream] == self.pieces[0]:
            self.pieces.pop(0)
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        super()._read(stream)


def claims_for(route: Route, number: int = 2) -> Claims:
    link = LINK_TO_0
    return Claims(link.purpose, link.channel, 1, 0, route.host, route.port, CONTEXT, number)


def hello_to(connected: socket.socket, route: Route, number: int = 2) -> bytes:
    """The hello of rank 1 on this connection."""
    challenge = read_exactly(connected, PROTOCOL.challenge_bytes)
    return Dialer(PROTOCOL, SECRET).hello(challenge, claims_for(route, number).to_bytes())
