"""Dials peers on other hosts: tries the addresses of a peer until one leads to the right rank.

The next address is tried when one has failed or after a moment without an answer, so several
attempts may run at once (RFC 8305). The first address that authenticates wins, and further links to
the same peer use it. They are dialled ahead at the best address, since it nearly always wins: that
saves three round trips. An address that refuses or does not answer is tried again a few times.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.handshake import Dialer, ProtocolError
from horovod.rendezvous.base.interfaces import Address, Route
from horovod.rendezvous.base.tcp import dialing_socket
from horovod.rendezvous.links.connector import Connector, Stream, Talk
from horovod.rendezvous.links.handshake import PROTOCOL, TAKE, Claims, Connected, Verdict, connected
from horovod.rendezvous.links.listening import LinkListener
from horovod.rendezvous.links.plan import FailedTry, Link, MissingLink, Report, Unreached

_STAGGER_S = 0.25
_CONTACT_S = 2.0  # after a connection, until the next address is tried
_TRIES = 3
_TRIES_WHEN_CLOSED = 12
_TRIES_WHEN_SILENT = 8  # after a connection: the rank waits for others of its host
_TRIES_WHEN_EARLY = 8  # the rank has yet to learn that it is to be dialled back
_LONGEST_PAUSE_S = 1.0
_ANSWER_TIMEOUT_S = 3.0
_MAX_AT_ONCE = 8
_VERDICTS = {
    Verdict.OTHER_RANK: "another rank of this job is there",
    Verdict.OTHER_BOOTSTRAP: "a rank of this job is there, in another bootstrap",
    Verdict.NOT_EXPECTED: "it does not expect this rank",
}


class RankDialer(NamedTuple):
    """The rank that dials, and what all its connections share."""

    connector: Connector
    rank: int
    secret: bytes
    context: bytes


class _Try(NamedTuple):
    link: Link
    route: Route


class PeerDial:
    """Connects ``links``, all to one peer. ``advance`` starts the tries that are due.

    ``made`` are the connections, which belong to the caller. ``reasons`` says why addresses failed.
    """

    def __init__(self, dialer: RankDialer, links: Sequence[Link], routes: Sequence[Route]) -> None:
        self.peer = links[0].peer
        self.made: dict[Link, Connected] = {}
        self.reasons: dict[Route, str] = {}
        self._dialer = dialer
        self._links = links
        self._tries: Counter[_Try] = Counter()
        self._claims: Counter[Link] = Counter()  # sent so far
        self._waiting = [(Deadline(0.0), _Try(links[0], route)) for route in dict.fromkeys(routes)]
        self._under_way: dict[Stream, _Try] = {}
        self._refusals: dict[Stream, Verdict] = {}
        self._authenticated: dict[Stream, Connected] = {}
        self._winner: Route | None = None
        self._last_start = 0.0

    @property
    def missing(self) -> list[Link]:
        """Links that are not made."""
        return [link for link in self._links if link not in self.made]

    @property
    def is_settled(self) -> bool:
        """Whether all links are made, or nothing is left to try."""
        return not self._waiting and not self._under_way

    def wait_s(self) -> float:
        """How long nothing is due, unless a try ends before."""
        is_full = self._is_racing and self._racers >= _MAX_AT_ONCE
        if is_full or not self._waiting:
            return 60.0
        first = min(due.remaining_s() for due, _ in self._waiting)
        return max(first, self._hold_s() if self._is_racing else 0.0)

    def advance(self) -> None:
        """Start the tries that are due."""
        while self.wait_s() <= 0:
            due = min(range(len(self._waiting)), key=lambda i: self._waiting[i][0].remaining_s())
            is_first = not self._tries
            attempt = self._waiting.pop(due)[1]
            self._start(attempt)
            for link in self._links[1:] if is_first else ():
                self._start(_Try(link, attempt.route))

    def give_up(self) -> None:
        """Drop the tries under way; ``made`` stays."""
        for stream, attempt in list(self._under_way.items()):
            self.reasons.setdefault(attempt.route, _unanswered(stream))
            self._dialer.connector.drop(stream)
        self._under_way.clear()
        self._authenticated.clear()
        self._waiting.clear()

    def _hold_s(self) -> float:
        """How long the tries under way may go on before another one begins."""
        since_s = time.monotonic() - self._last_start
        has_contact = any(stream.is_connected for stream in self._under_way)
        pause_s = _CONTACT_S if has_contact else _STAGGER_S
        return max(0.0, pause_s - since_s) if self._under_way else 0.0

    @property
    def _is_racing(self) -> bool:
        return self._winner is None

    @property
    def _racers(self) -> int:
        """How many addresses are being tried, without links that are dialled ahead."""
        return sum(attempt.link == self._links[0] for attempt in self._under_way.values())

    def _start(self, attempt: _Try) -> None:
        self._last_start = time.monotonic()
        self._tries[attempt] += 1
        deadline = Deadline(_ANSWER_TIMEOUT_S * 2 ** min(self._tries[attempt] - 1, _TRIES))
        try:
            dialing = dialing_socket(attempt.route)
        except OSError as error:
            self._note_failure(attempt, str(error), _TRIES)
            return
        stream = Stream(dialing, deadline, self._talk_of(attempt), self._on_end)
        self._under_way[stream] = attempt
        self._dialer.connector.connect(stream, attempt.route)

    def _talk_of(self, attempt: _Try) -> Callable[[Stream], Talk]:
        dialer, link, route = self._dialer, attempt.link, attempt.route
        ends = (dialer.rank, link.peer, route.host, route.port)
        claims = Claims(link.purpose, link.channel, *ends, dialer.context)

        def talk(stream: Stream) -> Talk:
            side = Dialer(PROTOCOL, dialer.secret)
            challenge = yield PROTOCOL.challenge_bytes
            self._claims[link] += 1
            numbered = claims._replace(number=self._claims[link])
            stream.send(side.hello(challenge, numbered.to_bytes()))
            verdict = Verdict.of(side.read_reply((yield PROTOCOL.reply_bytes)))
            if verdict in _VERDICTS:
                self._refusals[stream] = verdict
                raise ProtocolError(_VERDICTS[verdict])
            self._settle_on(stream)
            if verdict != Verdict.TAKEN:
                stream.send(TAKE)
                if (yield len(TAKE)) != TAKE:
                    raise ProtocolError("it broke the protocol after its handshake")
            self._authenticated[stream] = connected(stream.socket, side)

        return talk

    def _on_end(self, stream: Stream, reason: str | None) -> None:
        attempt = self._under_way.pop(stream)
        made = self._authenticated.pop(stream, None)
        if reason is not None or made is None:
            most_tries = _tries_after(stream, self._refusals.pop(stream, None))
            self._note_failure(attempt, reason or _unanswered(stream), most_tries)
        else:
            self.made[attempt.link] = made

    def _settle_on(self, stream: Stream) -> None:
        """Keep the address of the first connection that has authenticated."""
        if not self._is_racing:
            return
        winner = self._winner = self._under_way[stream].route
        for other in [each for each, attempt in self._under_way.items() if attempt.route != winner]:
            del self._under_way[other]
            self._dialer.connector.drop(other)
        under_way = {attempt.link for attempt in self._under_way.values()}
        rest = [link for link in self.missing if link not in under_way]
        self._waiting = [(Deadline(0.0), _Try(link, winner)) for link in rest]

    def _note_failure(self, attempt: _Try, reason: str, most_tries: int) -> None:
        self.reasons[attempt.route] = reason
        if self._is_racing and attempt.link != self._links[0]:
            return  # it was dialled ahead
        tries = self._tries[attempt]
        if tries < most_tries:
            pause_s = min(_STAGGER_S * tries, _LONGEST_PAUSE_S)
            self._waiting.append((Deadline(pause_s), attempt))
        self._last_start = 0.0


def _tries_after(stream: Stream, refusal: Verdict | None) -> int:
    """How often in all to try what ``stream`` has failed to do."""
    if refusal == Verdict.NOT_EXPECTED:
        return _TRIES_WHEN_EARLY
    if stream.was_closed_by_peer:
        return _TRIES_WHEN_CLOSED
    return _TRIES_WHEN_SILENT if stream.is_late and stream.is_connected else _TRIES


def _unanswered(stream: Stream) -> str:
    return "connected, but no answer" if stream.is_connected else "no answer"


class LinkAttempt:
    """One attempt to link a rank with other hosts: its connections, dialled and incoming ones.

    It listens at ``addresses`` from the beginning, and owns connector, listener and all sockets
    until ``take_over``. ``close`` ends the rest.
    """

    def __init__(self, rank: int, secret: bytes, addresses: Sequence[Address]) -> None:
        self.connector = Connector()
        self.listener = LinkListener(self.connector, rank, secret, addresses)
        self._current: list[PeerDial] = []
        self._made: dict[Link, Connected] = {}

    def dial(self, links: Sequence[Link], dial: Callable[[Sequence[Link]], PeerDial]) -> None:
        """Start to connect to the peers of these links, in addition to earlier ones."""
        self._collect()
        by_peer: dict[int, list[Link]] = {}
        for link in links:
            by_peer.setdefault(link.peer, []).append(link)
        self._current = [dial(group) for group in by_peer.values()]

    @property
    def is_settled(self) -> bool:
        """Whether all dials have ended."""
        return all(dial.is_settled for dial in self._current)

    def step(self, wait_s: float) -> None:
        """Advance everything; wait up to ``wait_s`` for the first event."""
        for dial in self._current:
            dial.advance()
        self.connector.step(min([wait_s, *(dial.wait_s() for dial in self._current)]))

    def give_up(self) -> None:
        """Dial no more."""
        for dial in self._current:
            dial.give_up()

    def report(self, rank: int) -> Report:
        """The result of the last ``dial``."""
        reached = tuple(dial.peer for dial in self._current if not dial.missing)
        unreached = [
            Unreached(
                dial.peer,
                [MissingLink(link.purpose, link.channel) for link in dial.missing],
                [FailedTry(str(route), why) for route, why in dial.reasons.items()],
            )
            for dial in self._current
            if dial.missing
        ]
        return Report(rank, reached, unreached)

    def take_over(self) -> dict[Link, Connected]:
        """All connections, which belong to the caller now."""
        self._collect()
        made, self._made = self._made | self.listener.arrived, {}
        self.listener.arrived.clear()
        return made

    def close(self) -> None:
        """End everything that was not taken over."""
        self.give_up()
        self.listener.close()
        self.connector.close()
        for made in self.take_over().values():
            made.socket.close()

    def _collect(self) -> None:
        for dial in self._current:
            self._made |= dial.made
            dial.made.clear()
        self._current = []
