"""Where a rank waits for those who connect to it: each address of its own, strangers kept out.

Whoever connects has a few seconds to prove that it knows the job's secret and that it is the rank
that is expected for this link; only then is anything that it says believed. Strangers cost one
bounded buffer and a descriptor each, for a bounded time, and are a part of the descriptors at most;
they are reported once per address and disturb nobody.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Collection, Sequence

from horovod.errors import InitError
from horovod.rendezvous.base.authentication import new_nonce
from horovod.rendezvous.base.descriptors import accept_some, most_strangers
from horovod.rendezvous.base.interfaces import Address, Listening
from horovod.rendezvous.base.membership import Deadline
from horovod.rendezvous.base.tcp import listening_socket
from horovod.rendezvous.base.unauthenticated import UnauthenticatedPeers
from horovod.rendezvous.host.handshake import ProtocolError
from horovod.rendezvous.links import handshake as greeting
from horovod.rendezvous.links.connector import Connector, Stream, Talk
from horovod.rendezvous.links.handshake import Claims, Connected, Verdict
from horovod.rendezvous.links.plan import Link, Purpose

__all__ = ["LinkListener"]

_GREETING_TIMEOUT_S = 10.0
_TURNS = 8
_MAX_REPORTS = 20


class LinkListener:
    """Listens at ``addresses``; ``listening`` says where, and ``arrived`` who has come.

    ``close`` ends it; the connections in ``arrived`` are the caller's.
    """

    def __init__(
        self,
        board: Connector,
        rank: int,
        secret: bytes,
        addresses: Sequence[Address],
    ) -> None:
        self.arrived: dict[Link, Connected] = {}
        self.listening: list[Listening] = []
        self._board = board
        self._rank = rank
        self._secret = secret
        self._context = b""
        self._friends: Collection[str] = ()
        self._expected: dict[tuple[Purpose, int, int], Link] = {}
        self._listeners: list[socket.socket] = []
        self._strangers: UnauthenticatedPeers[Stream] = UnauthenticatedPeers(most_strangers())
        self._known: set[Stream] = set()  # ranks whose link is being made
        self._reported: set[str] = set()
        for address in addresses:
            # One that is still being configured, for example, is left out.
            with contextlib.suppress(OSError):
                self._listen(address)

    def expect(self, links: Sequence[Link], context: bytes, friends: Collection[str]) -> None:
        """Let the peers of these links in as well; ``friends`` are the addresses of all ranks."""
        self._context = context
        self._friends = friends
        self._expected |= {(link.purpose, link.channel, link.peer): link for link in links}

    def forgo(self, links: Sequence[Link]) -> None:
        """Expect these no more, and keep nothing of them."""
        for link in links:
            self._expected.pop((link.purpose, link.channel, link.peer), None)
            self._close_arrived(link)

    @property
    def is_complete(self) -> bool:
        """Whether nobody is expected any more."""
        return not self._expected

    @property
    def missing(self) -> set[int]:
        """Ranks that are still expected."""
        return {link.peer for link in self._expected.values()}

    def close(self) -> None:
        """Stop listening and drop whoever has not proved anything yet."""
        while (stream := self._strangers.first_to_go()) is not None:
            self._strangers.remove(stream)
            self._board.drop(stream)
        for stream in self._known:
            self._board.drop(stream)
        self._known.clear()
        for listener in self._listeners:
            self._board.ignore(listener)
            listener.close()
        self._listeners.clear()

    def _listen(self, address: Address) -> None:
        listener = listening_socket(address)
        self._listeners.append(listener)
        self._board.listen(listener, lambda: self._accept(listener))
        self.listening.append(Listening(address, listener.getsockname()[1]))

    def _accept(self, listener: socket.socket) -> None:
        try:
            # So few at once that each of them has many turns to prove itself.
            for accepted, address in accept_some(listener, self._strangers.most // _TURNS):
                if self._strangers.is_full:
                    self._make_room()
                stream = Stream(accepted, Deadline(_GREETING_TIMEOUT_S), self._greet, self._on_end)
                self._strangers.add(stream, address[0].partition("%")[0])
                self._board.add(stream)
        except OSError as error:  # too many open files
            if not self._make_room():
                raise InitError(
                    f"init: rank {self._rank} cannot accept the other ranks: {error}"
                ) from None

    def _make_room(self) -> bool:
        """One who has not proved anything goes, if there is one; a rank of ours comes again."""
        stream = self._strangers.first_to_go()
        if stream is None:
            return False
        self._report(self._strangers.remove(stream) or "", "too many others have come since")
        self._board.drop(stream)
        return True

    def _greet(self, stream: Stream) -> Talk:
        nonce = new_nonce()
        stream.send(greeting.encode_challenge(nonce))
        greeting.check_magic((yield len(greeting.MAGIC)))
        rest = yield greeting.HELLO_REST_BYTES
        try:
            claims, theirs = greeting.read_hello(rest, self._secret, nonce)
        except ProtocolError:
            stream.send(greeting.REFUSAL)  # so that it need not come again
            raise
        self._strangers.remove(stream)
        self._known.add(stream)
        verdict = self._verdict(claims, stream)
        stream.send(greeting.encode_verdict(self._secret, verdict, claims, theirs, nonce))
        if verdict != Verdict.WELCOME:
            raise ProtocolError("a rank of this job that is not expected here")
        if (yield len(greeting.TAKE)) != greeting.TAKE:
            raise ProtocolError("it broke the protocol after its greeting")
        stream.send(greeting.TAKE)
        link = self._link_of(claims)
        if link is None:
            raise ProtocolError(f"rank {claims.dialer} is expected no more")
        self._expected.pop((link.purpose, link.channel, link.peer), None)
        self._close_arrived(link)  # which was cut before it knew that it had arrived
        keys = greeting.keys_of_listener(self._secret, claims, theirs, nonce)
        self.arrived[link] = Connected(stream.socket, keys)

    def _link_of(self, claims: Claims) -> Link | None:
        """The link that is expected, or has arrived and is made anew."""
        key = (claims.purpose, claims.channel, claims.dialer)
        arrived = {(link.purpose, link.channel, link.peer): link for link in self.arrived}
        return self._expected.get(key) or arrived.get(key)

    def _close_arrived(self, link: Link) -> None:
        if (earlier := self.arrived.pop(link, None)) is not None:
            earlier.socket.close()

    def _verdict(self, claims: Claims, stream: Stream) -> Verdict:
        host, port = stream.socket.getsockname()[:2]
        here = Claims(
            claims.purpose,
            claims.channel,
            claims.dialer,
            self._rank,
            host.partition("%")[0],
            port,
            self._context,
        )
        if claims.listener != self._rank:
            return Verdict.OTHER_RANK
        if claims.encode() != here.encode():
            return Verdict.OTHER_MEETING
        if self._link_of(claims) is None:
            return Verdict.NOT_EXPECTED
        return Verdict.WELCOME

    def _on_end(self, stream: Stream, reason: str | None) -> None:
        peer = self._strangers.remove(stream) or ""
        is_known = stream in self._known
        self._known.discard(stream)
        # A rank that finds a better address leaves the others without a word.
        is_rank = is_known or (stream.was_left and peer in self._friends)
        if reason is not None and not is_rank:
            self._report(peer, reason)

    def _report(self, peer: str, reason: str) -> None:
        if peer not in self._reported and len(self._reported) < _MAX_REPORTS:
            self._reported.add(peer)
            sys.stderr.write(f"horovod: init: dropped a connection from {peer}: {reason}\n")
