"""Listens for links at each address of this rank, and keeps unauthenticated peers out.

A peer has a few seconds to prove that it knows the job's secret and that it is the rank expected
for this link. Nothing else that it sends is used. An unauthenticated peer costs one bounded buffer
and one descriptor for a bounded time. Such peers get a part of the descriptors at most, and are
reported once per address.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Collection, Sequence

from horovod.errors import InitError
from horovod.rendezvous.base.admission import UnauthenticatedPeers, accept_some
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.handshake import Listener, ProtocolError
from horovod.rendezvous.base.interfaces import Address, Listening, Route
from horovod.rendezvous.base.tcp import listening_socket
from horovod.rendezvous.links.connector import Connector, Stream, Talk
from horovod.rendezvous.links.handshake import PROTOCOL, TAKE, Claims, Connected, Verdict, connected
from horovod.rendezvous.links.plan import Link, Purpose

_HANDSHAKE_TIMEOUT_S = 10.0
_TURNS = 8  # of the selector, in which a peer can prove itself before it may be dropped
_MAX_REPORTS = 20


class LinkListener:
    """Listens at ``addresses``. ``listening`` are those in use, ``arrived`` the links made.

    The connections in ``arrived`` belong to the caller. ``close`` ends the rest.
    """

    def __init__(
        self, connector: Connector, rank: int, secret: bytes, addresses: Sequence[Address]
    ) -> None:
        self.arrived: dict[Link, Connected] = {}
        self.listening: list[Listening] = []
        self._connector = connector
        self._rank = rank
        self._secret = secret
        self._context = b""
        self._rank_addresses: Collection[str] = ()
        self._expected: set[Link] = set()
        self._known: dict[tuple[Purpose, int, int], Link] = {}  # expected or arrived
        self._numbers: dict[Link, int] = {}  # of the claims of those that have arrived
        self._listeners: list[socket.socket] = []
        self._unauthenticated = UnauthenticatedPeers[Stream]()
        self._authenticated: set[Stream] = set()  # ranks whose link is being made
        self._reported: set[str] = set()
        for address in addresses:
            # An address may be unusable, for example while it is being configured.
            with contextlib.suppress(OSError):
                self._listen(address)

    def expect(
        self, links: Sequence[Link], context: bytes, rank_addresses: Collection[str]
    ) -> None:
        """Accept these links as well; ``rank_addresses`` are the addresses of all ranks."""
        self._context = context
        self._rank_addresses = rank_addresses
        self._expected.update(links)
        self._known.update({(link.purpose, link.channel, link.peer): link for link in links})

    def expect_no_more(self, links: Sequence[Link]) -> None:
        """Refuse these links from now on, and close those that have arrived."""
        self._expected.difference_update(links)
        for link in links:
            self._known.pop((link.purpose, link.channel, link.peer), None)
            self._close_arrived(link)

    @property
    def is_complete(self) -> bool:
        """Whether all expected links have arrived."""
        return not self._expected

    @property
    def missing(self) -> set[int]:
        """Ranks of the expected links that have not arrived."""
        return {link.peer for link in self._expected}

    def close(self) -> None:
        """Stop listening and drop all connections whose handshake is not complete."""
        while (stream := self._unauthenticated.first_to_go()) is not None:
            self._unauthenticated.remove(stream)
            self._connector.drop(stream)
        for stream in self._authenticated:
            self._connector.drop(stream)
        self._authenticated.clear()
        for listener in self._listeners:
            self._connector.ignore(listener)
            listener.close()
        self._listeners.clear()

    def _listen(self, address: Address) -> None:
        route = Route(address.host, 0, address.scope)
        listener = listening_socket(route.family, route.target)
        self._listeners.append(listener)
        self._connector.listen(listener, lambda: self._accept(listener))
        self.listening.append(Listening(address, listener.getsockname()[1]))

    def _accept(self, listener: socket.socket) -> None:
        try:
            # Few at once, so that each of them has many turns to prove itself.
            for accepted, address in accept_some(listener, self._unauthenticated.most // _TURNS):
                if self._unauthenticated.is_full:
                    self._make_room()
                stream = Stream(accepted, Deadline(_HANDSHAKE_TIMEOUT_S), self._talk, self._on_end)
                self._unauthenticated.add(stream, address[0].partition("%")[0])
                self._connector.add(stream)
        except OSError as error:  # too many open files
            if not self._make_room():
                raise InitError(
                    f"init: rank {self._rank} cannot accept the other ranks: {error}"
                ) from None

    def _make_room(self) -> bool:
        """Drop an unauthenticated peer, if there is one; a rank of this job would dial again."""
        stream = self._unauthenticated.first_to_go()
        if stream is None:
            return False
        self._report(self._unauthenticated.remove(stream) or "", "too many others have come since")
        self._connector.drop(stream)
        return True

    def _talk(self, stream: Stream) -> Talk:
        side = Listener(PROTOCOL, self._secret)
        stream.send(side.opening)
        magic = yield len(PROTOCOL.magic)
        PROTOCOL.check_magic(magic)
        hello = magic + (yield PROTOCOL.hello_bytes - len(magic))
        try:
            claims = Claims.from_bytes(side.read_hello(hello))
        except ProtocolError:
            stream.send(PROTOCOL.refusal)
            raise
        self._unauthenticated.remove(stream)
        self._authenticated.add(stream)
        verdict = self._verdict(claims, stream)
        stream.send(side.reply(bytes((verdict,))))
        if verdict not in (Verdict.WELCOME, Verdict.TAKEN):
            raise ProtocolError("a rank of this job that is not expected here")
        if verdict == Verdict.WELCOME and (yield len(TAKE)) != TAKE:
            raise ProtocolError("it broke the protocol after its handshake")
        link = self._current_link_of(claims)
        if verdict == Verdict.WELCOME:
            stream.send(TAKE)
        self._expected.discard(link)
        self._close_arrived(link)  # the dialer has lost it before it was answered
        self._numbers[link] = claims.number
        self.arrived[link] = connected(stream.socket, side)

    def _current_link_of(self, claims: Claims) -> Link:
        """The link to make. ProtocolError if the dialer has given up these claims since."""
        link = self._link_of(claims)
        if link is None:
            raise ProtocolError(f"rank {claims.dialer} is not expected any more")
        if claims.number < self._numbers.get(link, 0):
            raise ProtocolError(f"rank {claims.dialer} has another connection")
        return link

    def _link_of(self, claims: Claims) -> Link | None:
        """The link that is expected, or has arrived and is dialled again."""
        return self._known.get((claims.purpose, claims.channel, claims.dialer))

    def _close_arrived(self, link: Link) -> None:
        if (earlier := self.arrived.pop(link, None)) is not None:
            earlier.socket.close()

    def _verdict(self, claims: Claims, stream: Stream) -> Verdict:
        host, port = stream.socket.getsockname()[:2]
        here = {"listener": self._rank, "host": host.partition("%")[0], "port": port}
        expected = claims._replace(**here, context=self._context)
        if claims.listener != self._rank:
            return Verdict.OTHER_RANK
        if claims.to_bytes() != expected.to_bytes():
            return Verdict.OTHER_BOOTSTRAP
        link = self._link_of(claims)
        if link is None:
            return Verdict.NOT_EXPECTED
        is_first = claims.number == 1 and link not in self.arrived
        return Verdict.TAKEN if is_first else Verdict.WELCOME

    def _on_end(self, stream: Stream, reason: str | None) -> None:
        peer = self._unauthenticated.remove(stream) or ""
        is_authenticated = stream in self._authenticated
        self._authenticated.discard(stream)
        # A rank that has found a better address closes its other connections silently.
        is_rank = is_authenticated or (stream.was_closed_by_peer and peer in self._rank_addresses)
        if reason is not None and not is_rank:
            self._report(peer, reason)

    def _report(self, peer: str, reason: str) -> None:
        if peer not in self._reported and len(self._reported) < _MAX_REPORTS:
            self._reported.add(peer)
            sys.stderr.write(f"horovod: init: dropped a connection from {peer}: {reason}\n")
