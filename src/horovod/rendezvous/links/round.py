"""One attempt to connect the hosts of a process set.

All members publish through the store where they listen. In the attempt for a world they may have
said so already, when they told who they are: that saves a round trip. Then the higher rank of each
pair dials the lower one. If that fails, the lower rank dials the higher one, since a firewall may
allow only one direction. Each step ends with a ``StoreAllgather``, so all members succeed or all
fail with the same error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from horovod import __version__
from horovod.core.base.checked import MOST_RANKS, Record, between, listed, shown
from horovod.core.base.ranks import ranks_text
from horovod.errors import InitError
from horovod.rendezvous.allgather import StoreAllgather, decode_of
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.interfaces import Address, Listening, routes_between
from horovod.rendezvous.base.membership import as_failure
from horovod.rendezvous.base.protection import find_cipher
from horovod.rendezvous.capabilities import RankCapabilities
from horovod.rendezvous.links.dialing import LinkAttempt, PeerDial, RankDialer
from horovod.rendezvous.links.handshake import Connected, digest_of
from horovod.rendezvous.links.plan import Link, Report, failure_of, plan_links
from horovod.rendezvous.store.client import Store

if TYPE_CHECKING:
    from horovod._native import LinkCipher

_POLL_S, _MOST_POLL_S = 0.05, 1.0
_POLLED_PART = 0.1  # of the time that has passed: thousands of ranks poll one store
_CHECK_S = 0.5  # between two looks for a rank that dials a lost connection again
# Between two looks for a failure of another member while this one dials. The dials wait for the
# answer of the store meanwhile, on a bad link for seconds.
_LOOK_S = 10.0


class LinkSettings(NamedTuple):
    """What all ranks must want alike. ``protection`` is that of data links.

    ``connections``: data links of two hosts, at least.
    """

    protection: str = "control"
    connections: int = 1


class World(NamedTuple):
    """The data that all attempts of one world share."""

    rank: int
    capabilities: Sequence[RankCapabilities]
    store: Store
    secret: bytes
    settings: LinkSettings

    def shares_network(self, rank: int) -> bool:
        """Whether ``rank`` is in the same network namespace as this one."""
        network = self.capabilities[self.rank].host_id.network
        return network != "" and network == self.capabilities[rank].host_id.network


@dataclass(frozen=True)
class _Member(Record):
    """The message of one member. ``cipher_problem``: why it cannot seal links, else empty."""

    message = "addresses"

    build: Annotated[str, shown(255)]
    protection: Annotated[str, shown(32)]
    connections: Annotated[int, between(1, MOST_RANKS)]
    cipher_problem: Annotated[str, shown(4096)]
    listening: Annotated[list[Listening], listed(Listening)]


def offer_of(listening: list[Listening], settings: LinkSettings) -> bytes:
    """What a member publishes: where it listens, and what it needs of the others."""
    cipher = find_cipher()
    problem = cipher if isinstance(cipher, str) else ""
    return _Member(_build(), *settings, problem, listening).to_bytes()


@dataclass(eq=False, repr=False)
class LinkRound:
    """Connects this rank with the members in ``hosts`` within ``deadline``; ``key`` is used once.

    ``offers``: those of all members, if they are known already. A context manager: an error in its
    block fails on the other members too.
    """

    _world: World
    _hosts: Sequence[Sequence[int]]
    _key: str
    _deadline: Deadline
    _: KW_ONLY
    with_news: bool = False
    offers: Sequence[bytes] = ()

    def __post_init__(self) -> None:
        self._rank = self._world.rank
        self._cipher = find_cipher()
        self._ranks = sorted(member for host in self._hosts for member in host)
        self._links = self._links_of(self._rank)
        self._context = digest_of(
            self._key, _build(), json.dumps([list(host) for host in self._hosts])
        )
        self._step = self._allgather("forward" if self.offers else "addresses")

    def __enter__(self) -> LinkRound:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._step.fail(as_failure(self._rank, error))

    @property
    def cipher(self) -> LinkCipher:
        """The cipher of the links. InitError if this rank has none."""
        if isinstance(self._cipher, str):
            raise self._no_cipher(self._rank, self._cipher)
        return self._cipher

    def connect(self, attempt: LinkAttempt, addresses: Sequence[Address]) -> dict[Link, Connected]:
        """All links of this rank, whose addresses are these; ``attempt`` is still the caller's.

        Raises:
            InitError: not all members could be connected; the same on all of them.
        """
        offers = self.offers or self._publish(attempt.listener.listening)
        self._connect(attempt, self._read(offers), addresses)
        return attempt.take_over()

    def _links_of(self, rank: int) -> list[Link]:
        least = self._world.settings.connections
        return plan_links(rank, self._hosts, self.with_news, least)

    def _allgather(self, name: str) -> StoreAllgather:
        store, secret = self._world.store, self._world.secret
        key = f"{self._key}/{name}"
        return StoreAllgather(store, secret, key, self._rank, self._ranks, self._deadline)

    def _publish(self, listening: list[Listening]) -> list[bytes]:
        """Publish where this rank listens; the offers of all members, which the first has checked.

        A check while they come in ends the wait for those that are late.
        """
        self._step.check = self._check_offer
        own = offer_of(listening, self._world.settings)
        if self._rank == self._ranks[0] and (problem := self._check_offer(self._rank, own)):
            raise problem
        return self._step.exchange(own)

    def _read(self, offers: Sequence[bytes]) -> dict[int, _Member]:
        """The members to which this rank has links.

        A rank does not decode the others: in a world of thousands that took longer than all
        connections.
        """
        by_rank = dict(zip(self._ranks, offers, strict=True))
        if self.offers and self._rank == self._ranks[0]:
            for rank, offer in by_rank.items():
                if problem := self._check_offer(rank, offer):
                    raise problem
        peers = {link.peer for link in self._links}
        return {rank: decode_of(rank, by_rank[rank], _Member.from_bytes) for rank in peers}

    def _check_offer(self, rank: int, value: bytes) -> InitError | None:
        """Why there can be no link to ``rank``; called on the first rank."""
        try:
            member = decode_of(rank, value, _Member.from_bytes)
        except InitError as error:
            return error
        if member.build != _build():
            return InitError(
                f"init: rank {rank} runs {member.build}, rank {self._rank} {_build()}; "
                "all hosts need the same version of horovod",
                ranks=[rank],
            )
        for name, its, expected in (
            ("HOROVOD_LINK_PROTECTION", member.protection, self._world.settings.protection),
            ("HOROVOD_LINK_CONNECTIONS", member.connections, self._world.settings.connections),
        ):
            if its != expected:
                return InitError(
                    f"init: {name} is {its} on rank {rank} and {expected} on rank {self._rank}; "
                    "all ranks need the same",
                    ranks=[rank],
                )
        return self._no_cipher(rank, member.cipher_problem) if member.cipher_problem else None

    def _no_cipher(self, rank: int, problem: str) -> InitError:
        host = self._world.capabilities[rank].hostname
        return InitError(
            f"init: rank {rank} on {host} finds no libcrypto of OpenSSL 1.1 "
            f"or 3, which connections between hosts need ({problem}); install the system's "
            "package (libssl3 on Debian and Ubuntu, openssl-libs on Fedora and RHEL), or "
            "conda's openssl",
            ranks=[rank],
            host=host,
        )

    def _connect(
        self, attempt: LinkAttempt, members: dict[int, _Member], addresses: Sequence[Address]
    ) -> None:
        listener = attempt.listener
        dialer = RankDialer(attempt.connector, self._rank, self._world.secret, self._context)
        hosts = {there.address.host for m in members.values() for there in m.listening}

        def dial(links: Sequence[Link]) -> PeerDial:
            peer = links[0].peer
            is_same_network = self._world.shares_network(peer)
            routes = routes_between(addresses, members[peer].listening, is_same_network)
            return PeerDial(dialer, links, routes)

        incoming = [link for link in self._links if link.peer > self._rank]
        listener.expect(incoming, self._context, hosts)
        attempt.dial([link for link in self._links if link.peer < self._rank], dial)
        forward = self._settle(attempt, "forward", 3, self._dialled_by)
        if forward:
            mine, theirs = self._turned(forward)
            listener.expect_no_more(mine)
            listener.expect(theirs, self._context, hosts)
            attempt.dial(mine, dial)
            back = self._settle(attempt, "back", 2, lambda rank: _dialled_back(rank, forward))
            if back:
                raise failure_of(self._world.capabilities, self._hosts, [*forward, *back])
        self._receive_rest(attempt)

    def _turned(self, reports: Sequence[Report]) -> tuple[list[Link], list[Link]]:
        """The links that could not be dialled: those for this rank to dial, and those to expect."""
        failed = {
            (report.rank, unreached.peer, link.purpose, link.channel)
            for report in reports
            for unreached in report.unreached
            for link in unreached.links
        }
        mine, theirs = [], []
        for link in self._links:
            what = (int(link.purpose), link.channel)
            if (link.peer, self._rank, *what) in failed:
                mine.append(link)
            elif (self._rank, link.peer, *what) in failed:
                theirs.append(link)
        return mine, theirs

    def _dialled_by(self, rank: int) -> list[int]:
        """The peers that ``rank`` dials at first."""
        return sorted({link.peer for link in self._links_of(rank) if link.peer < rank})

    def _settle(
        self, attempt: LinkAttempt, name: str, parts: int, dialled_by: Callable[[int], list[int]]
    ) -> list[Report]:
        """Dial, and accept links from ranks that dial this one, for one of ``parts`` of the time.

        Returns the reports of all members, or none if all have reached all that they dialled. Such
        a member reports nothing, so that a world of thousands has next to nothing to exchange.
        """
        budget = Deadline(self._deadline.remaining_s() / parts)
        self._step = self._allgather(name)
        self._dial(attempt, budget)
        attempt.give_up()
        own = attempt.report(self._rank)
        self._step.begin(own.to_bytes() if own.unreached else b"")
        start_s = time.monotonic()
        while (answers := self._poll(attempt)) is None:
            # A rank that expects no connection blocks on the store; the others poll it.
            pause_s = _POLLED_PART * (time.monotonic() - start_s)
            next_poll = Deadline(min(max(_POLL_S, pause_s), _MOST_POLL_S))
            while not (next_poll.has_passed or attempt.listener.is_complete):
                attempt.step(next_poll.remaining_s())
        known = frozenset(self._ranks)
        if not any(answers):
            return []
        return [
            decode_of(rank, answer, partial(Report.about, known))
            if answer
            else Report(rank, tuple(dialled_by(rank)), [])
            for rank, answer in zip(self._ranks, answers, strict=True)
        ]

    def _dial(self, attempt: LinkAttempt, budget: Deadline) -> None:
        """Until all dials have ended or the budget has passed; a member's failure ends it, too.

        A member may fail on its host while others of this one's peers are silent.
        """
        while not (budget.has_passed or attempt.is_settled):
            next_look = Deadline(_LOOK_S)
            while not (next_look.has_passed or budget.has_passed or attempt.is_settled):
                attempt.step(min(next_look.remaining_s(), budget.remaining_s()))
            if next_look.has_passed:
                self._step.poll(0.0)

    def _poll(self, attempt: LinkAttempt) -> list[bytes] | None:
        answers = self._step.poll(_CHECK_S if attempt.listener.is_complete else 0.0)
        attempt.step(0.0)
        return answers

    def _receive_rest(self, attempt: LinkAttempt) -> None:
        """Wait for the last messages of the ranks that have dialled this one with success."""
        while not attempt.listener.is_complete:
            if self._deadline.has_passed:
                missing = attempt.listener.missing
                raise InitError(
                    f"init: {ranks_text(missing)} left while the hosts were being connected",
                    ranks=missing,
                )
            attempt.step(self._deadline.remaining_s())


def _dialled_back(rank: int, forward: Sequence[Report]) -> list[int]:
    """The peers that ``rank`` dials since they could not reach it."""
    return [
        report.rank
        for report in forward
        if any(unreached.peer == rank for unreached in report.unreached)
    ]


def _build() -> str:
    """The build, which must be the same on all ranks: their engines exchange bytes."""
    return f"horovod {__version__} ({sys.byteorder} endian)"
