"""The way to one peer on another host: its addresses are tried until one leads to the right rank.

A new address is tried when one has failed or a moment has passed without an answer, so several may
be under way at once (RFC 8305). The first that authenticates wins; further links to the same peer
then use it. What was refused or got no answer is tried again a few times.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from horovod.rendezvous.base.authentication import new_nonce
from horovod.rendezvous.base.interfaces import Route
from horovod.rendezvous.base.membership import Deadline
from horovod.rendezvous.base.protection import LinkKeys
from horovod.rendezvous.base.tcp import dialing_socket
from horovod.rendezvous.host.handshake import ProtocolError
from horovod.rendezvous.links import handshake as greeting
from horovod.rendezvous.links.connector import Connector, Stream, Talk
from horovod.rendezvous.links.handshake import Claims, Connected, Verdict
from horovod.rendezvous.links.plan import Link

__all__ = ["Dialer", "PeerDial"]

_STAGGER_S = 0.25
_PATIENCE_S = 2.0  # with somebody who is there, but slow to answer
_TRIES = 3
_TRIES_WHEN_LEFT = 12
_LONGEST_PAUSE_S = 1.0
_ANSWER_TIMEOUT_S = 3.0
_MAX_AT_ONCE = 8
_VERDICTS = {
    Verdict.OTHER_RANK: "another rank of this job is there",
    Verdict.OTHER_MEETING: "a rank of this job is there, in another meeting",
    Verdict.NOT_EXPECTED: "it does not expect this rank",
}


@dataclass(frozen=True)
class Dialer:
    """Who connects, and what all its connections share."""

    board: Connector
    rank: int
    secret: bytes
    context: bytes


@dataclass(frozen=True)
class _Try:
    link: Link
    route: Route


class PeerDial:
    """Connects ``links``, all to one peer. ``advance`` starts what is due; the board does the rest.

    ``made`` are the connections, which belong to the caller; ``reasons`` why addresses failed.
    """

    def __init__(self, dialer: Dialer, links: Sequence[Link], routes: Sequence[Route]) -> None:
        self.peer = links[0].peer
        self.made: dict[Link, Connected] = {}
        self.reasons: dict[Route, str] = {}
        self._dialer = dialer
        self._links = links
        self._tries: Counter[_Try] = Counter()
        self._waiting: list[tuple[Deadline, _Try]] = []
        self._under_way: dict[Stream, _Try] = {}
        self._keys: dict[Stream, LinkKeys] = {}
        self._winner: Route | None = None
        self._last_start = 0.0
        for route in routes:
            self._waiting.append((Deadline(0.0), _Try(links[0], route)))

    @property
    def missing(self) -> list[Link]:
        """Links that are not made."""
        return [link for link in self._links if link not in self.made]

    @property
    def is_settled(self) -> bool:
        """Whether all links are made, or nothing is left to try."""
        return not self._waiting and not self._under_way

    def wait_s(self) -> float:
        """How long nothing is due, unless something ends before."""
        is_full = self._is_racing and len(self._under_way) >= _MAX_AT_ONCE
        if is_full or not self._waiting:
            return 60.0
        first = min(due.remaining_s() for due, _ in self._waiting)
        return max(first, self._hold_s() if self._is_racing else 0.0)

    def advance(self) -> None:
        """Start the tries that are due."""
        while self.wait_s() <= 0:
            due = min(range(len(self._waiting)), key=lambda i: self._waiting[i][0].remaining_s())
            self._start(self._waiting.pop(due)[1])

    def give_up(self) -> None:
        """Drop what is under way; what was made stays."""
        for stream, attempt in list(self._under_way.items()):
            self.reasons.setdefault(attempt.route, _unanswered(stream))
            self._dialer.board.drop(stream)
        self._under_way.clear()
        self._keys.clear()
        self._waiting.clear()

    def _hold_s(self) -> float:
        """How long the tries under way are given before another one begins."""
        since_s = time.monotonic() - self._last_start
        has_contact = any(stream.is_connected for stream in self._under_way)
        patience_s = _PATIENCE_S if has_contact else _STAGGER_S
        return max(0.0, patience_s - since_s) if self._under_way else 0.0

    @property
    def _is_racing(self) -> bool:
        return self._winner is None

    def _start(self, attempt: _Try) -> None:
        self._last_start = time.monotonic()
        self._tries[attempt] += 1
        patience = Deadline(_ANSWER_TIMEOUT_S * 2 ** min(self._tries[attempt] - 1, _TRIES))
        try:
            dialing = dialing_socket(attempt.route)
        except OSError as error:
            self._note_failure(attempt, str(error))
            return
        stream = Stream(dialing, patience, self._talk_of(attempt), self._on_end)
        self._under_way[stream] = attempt
        self._dialer.board.connect(stream, attempt.route)

    def _talk_of(self, attempt: _Try) -> Callable[[Stream], Talk]:
        dialer, link, route = self._dialer, attempt.link, attempt.route
        claims = Claims(
            link.purpose,
            link.channel,
            dialer.rank,
            link.peer,
            route.host,
            route.port,
            dialer.context,
        )

        def talk(stream: Stream) -> Talk:
            challenge = yield greeting.CHALLENGE_BYTES
            magic, theirs = challenge[: len(greeting.MAGIC)], challenge[len(greeting.MAGIC) :]
            greeting.check_magic(magic)
            nonce = new_nonce()
            stream.send(greeting.encode_hello(dialer.secret, claims, nonce, theirs))
            answer = yield greeting.VERDICT_BYTES
            verdict = greeting.read_verdict(answer, dialer.secret, claims, nonce, theirs)
            if verdict != Verdict.WELCOME:
                raise ProtocolError(_VERDICTS[verdict])
            self._settle_on(stream)
            stream.send(greeting.TAKE)
            if (yield len(greeting.TAKE)) != greeting.TAKE:
                raise ProtocolError("it broke the protocol after its greeting")
            self._keys[stream] = greeting.keys_of_dialer(dialer.secret, claims, nonce, theirs)

        return talk

    def _on_end(self, stream: Stream, reason: str | None) -> None:
        attempt = self._under_way.pop(stream)
        keys = self._keys.pop(stream, None)
        if reason is not None or keys is None:
            self._note_failure(attempt, reason or _unanswered(stream), was_left=stream.was_left)
        else:
            self.made[attempt.link] = Connected(stream.socket, keys)

    def _settle_on(self, stream: Stream) -> None:
        """The first that has authenticated wins, before it is told so: no other one is kept."""
        if not self._is_racing:
            return
        attempt = self._under_way.pop(stream)
        self._winner = attempt.route
        for other in self._under_way:
            self._dialer.board.drop(other)
        self._under_way = {stream: attempt}
        rest = [link for link in self.missing if link != attempt.link]
        self._waiting = [(Deadline(0.0), _Try(link, attempt.route)) for link in rest]

    def _note_failure(self, attempt: _Try, reason: str, *, was_left: bool = False) -> None:
        self.reasons[attempt.route] = reason
        tries = self._tries[attempt]
        if tries < (_TRIES_WHEN_LEFT if was_left else _TRIES):
            pause_s = min(_STAGGER_S * tries, _LONGEST_PAUSE_S)
            self._waiting.append((Deadline(pause_s), attempt))
        self._last_start = 0.0


def _unanswered(stream: Stream) -> str:
    return "connected, but no answer" if stream.is_connected else "no answer"
