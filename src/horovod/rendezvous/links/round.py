"""One attempt to connect the hosts of a process set: who listens where, who dials whom.

All members publish where they listen, through the store. Then the higher rank of each pair dials
the lower. Where that failed the lower dials the higher, since a firewall may let only one of the
two through. Each step ends with a ``StoreAllgather``, so all members succeed or all fail, with one
text.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod import __version__
from horovod.core.base.checked import Fields, printable
from horovod.core.base.ranks import ranks_text
from horovod.errors import InitError
from horovod.rendezvous.allgather import StoreAllgather, decode_all
from horovod.rendezvous.base.failure import as_failure
from horovod.rendezvous.base.interfaces import Address, Listening, routes_between
from horovod.rendezvous.base.membership import Deadline
from horovod.rendezvous.base.protection import find_cipher
from horovod.rendezvous.capabilities import RankCapabilities
from horovod.rendezvous.links.attempt import LinkAttempt
from horovod.rendezvous.links.connector import Connector
from horovod.rendezvous.links.dialing import Dialer, PeerDial
from horovod.rendezvous.links.handshake import Connected, digest_of
from horovod.rendezvous.links.listening import LinkListener
from horovod.rendezvous.links.plan import Link, plan_links
from horovod.rendezvous.links.reachability import Report, decode_report, encode_report, failure_of
from horovod.rendezvous.store.client import Store

if TYPE_CHECKING:
    from horovod._native import LinkCipher

__all__ = ["LinkRound"]

_POLL_S = 0.05
_LOOK_S = 0.5  # how soon a rank that awaits nobody sees one whose connection was cut come again


@dataclass(frozen=True)
class _Member:
    """What one member published; ``cipher_problem`` says why it cannot seal links, if so."""

    build: str
    protection: str
    cipher_problem: str
    listening: list[Listening]


class LinkRound:
    """Connects ``rank`` with the members in ``hosts``, within ``deadline``; ``key`` is used once.

    A context manager: from its beginning on, what fails here fails on the other members too.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[Sequence[int]],
        cards: Sequence[RankCapabilities],
        store: Store,
        secret: bytes,
        key: str,
        deadline: Deadline,
        protection: str,
        *,
        with_news: bool = False,
    ) -> None:
        self._rank = rank
        self._hosts = hosts
        self._cards = cards
        self._store = store
        self._secret = secret
        self._key = key
        self._deadline = deadline
        self._protection = protection
        self._cipher = find_cipher()
        self._ranks = sorted(member for host in hosts for member in host)
        self._links = plan_links(rank, hosts, with_news)
        self._context = digest_of(key, _build(), json.dumps([list(host) for host in hosts]))
        self._step = self._gathering("addresses")

    def __enter__(self) -> LinkRound:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._step.fail(as_failure(self._rank, error))

    @property
    def cipher(self) -> LinkCipher:
        """What seals the links, once they are made."""
        if isinstance(self._cipher, str):
            raise self._no_cipher(self._rank, self._cipher)
        return self._cipher

    def connect(self, addresses: Sequence[Address]) -> dict[Link, Connected]:
        """All links of this rank, which listens at ``addresses`` while they are made.

        Raises:
            InitError: not all members could be connected; on all of them alike.
        """
        board = Connector()
        calls = LinkAttempt(board, LinkListener(board, self._rank, self._secret, addresses))
        try:
            members = self._publish(calls.reception.listening)
            self._connect(calls, members, addresses)
            return calls.take_over()
        finally:
            calls.close()

    def _gathering(self, name: str) -> StoreAllgather:
        key = f"{self._key}/{name}"
        return StoreAllgather(
            self._store, self._secret, key, self._rank, self._ranks, self._deadline
        )

    def _publish(self, listening: list[Listening]) -> dict[int, _Member]:
        lack = self._cipher if isinstance(self._cipher, str) else ""
        own = _Member(_build(), self._protection, lack, listening)
        answers = self._step.exchange(json.dumps(dataclasses.asdict(own)).encode())
        decoded = decode_all(self._ranks, answers, _decode_member)
        members = dict(zip(self._ranks, decoded, strict=True))
        for rank, member in members.items():
            if problem := self._problem_of(rank, member, members[self._ranks[0]]):
                raise problem
        return members

    def _problem_of(self, rank: int, member: _Member, first: _Member) -> InitError | None:
        """Why there can be no link to ``rank``; ``first`` is what the first of all ranks said."""
        if member.build != first.build:
            return InitError(
                f"init: rank {rank} runs {member.build}, rank {self._ranks[0]} {first.build}; "
                "all hosts need the same version of horovod",
                ranks=[rank],
            )
        if member.protection != first.protection:
            return InitError(
                f"init: HOROVOD_LINK_PROTECTION is {member.protection} on rank {rank} and "
                f"{first.protection} on rank {self._ranks[0]}; all ranks need the same",
                ranks=[rank],
            )
        return self._no_cipher(rank, member.cipher_problem) if member.cipher_problem else None

    def _no_cipher(self, rank: int, problem: str) -> InitError:
        host = self._cards[rank].hostname
        return InitError(
            f"init: rank {rank} on {host} finds no libcrypto of OpenSSL 1.1 "
            f"or 3, which seals connections between hosts ({problem}); install the system's "
            "package (libssl3 on Debian and Ubuntu, openssl-libs on Fedora and RHEL), or "
            "conda's openssl",
            ranks=[rank],
            host=host,
        )

    def _connect(
        self, calls: LinkAttempt, members: dict[int, _Member], addresses: Sequence[Address]
    ) -> None:
        dialer = Dialer(calls.board, self._rank, self._secret, self._context)
        hosts = {there.address.host for m in members.values() for there in m.listening}

        def approach(links: Sequence[Link]) -> PeerDial:
            peer = links[0].peer
            is_same_network = self._is_same_network(peer)
            routes = routes_between(addresses, members[peer].listening, is_same_network)
            return PeerDial(dialer, links, routes)

        incoming = [link for link in self._links if link.peer > self._rank]
        calls.reception.expect(incoming, self._context, hosts)
        calls.dial([link for link in self._links if link.peer < self._rank], approach)
        forward = self._settle(calls, "forward", Deadline(self._deadline.remaining_s() / 3))
        if any(report.unreached for report in forward):
            mine, theirs = self._turned(forward)
            calls.reception.forgo(mine)
            calls.reception.expect(theirs, self._context, hosts)
            calls.dial(mine, approach)
            back = self._settle(calls, "back", Deadline(self._deadline.remaining_s() / 2))
            if any(report.unreached for report in back):
                raise failure_of(self._cards, self._hosts, [*forward, *back])
        self._receive_rest(calls)

    def _is_same_network(self, peer: int) -> bool:
        network = self._cards[self._rank].place.network
        return network != "" and network == self._cards[peer].place.network

    def _turned(self, reports: Sequence[Report]) -> tuple[list[Link], list[Link]]:
        """The links that could not be dialled: those now ours to dial, and those now to expect."""
        failed = {
            (report.rank, peer, *link)
            for report in reports
            for peer, unreached in report.unreached.items()
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

    def _settle(self, calls: LinkAttempt, name: str, budget: Deadline) -> list[Report]:
        """Dial, answer those who dial us, and hear from all members how it went."""
        self._step = self._gathering(name)
        while not (budget.has_passed or calls.is_settled):
            calls.step(budget.remaining_s())
        calls.give_up()
        self._step.post(encode_report(calls.report(self._rank)))
        answers = None
        while answers is None:
            # Who awaits nobody may sleep at the store; the others look there now and then.
            next_poll = Deadline(_POLL_S)
            while not (next_poll.has_passed or calls.reception.is_complete):
                calls.step(next_poll.remaining_s())
            answers = self._step.poll(_LOOK_S if calls.reception.is_complete else 0.0)
            calls.step(0.0)
        known = frozenset(self._ranks)
        return decode_all(self._ranks, answers, lambda text: decode_report(text, known))

    def _receive_rest(self, calls: LinkAttempt) -> None:
        """All who dial us have succeeded: their last words are under way."""
        while not calls.reception.is_complete:
            if self._deadline.has_passed:
                missing = calls.reception.missing
                raise InitError(
                    f"init: {ranks_text(missing)} left while the hosts were being connected",
                    ranks=missing,
                )
            calls.step(self._deadline.remaining_s())


def _build() -> str:
    """What must be the same for the engines to understand each other's bytes."""
    return f"horovod {__version__} ({sys.byteorder} endian)"


def _decode_member(text: bytes) -> _Member:
    """BadMessageError if it is none."""
    fields = Fields.read("addresses", text)
    member = _Member(
        printable(fields.text("build", 255)),
        printable(fields.text("protection", 32)),
        printable(fields.text("cipher_problem", 4096)),
        fields.each("listening", _listening),
    )
    fields.close()
    return member


def _listening(fields: Fields) -> Listening:
    there = fields.fields("address")
    address = Address(
        host=there.text("host", 64),
        bits=there.integer("bits", 0, 128),
        interface=printable(there.text("interface", 255)),
        scope=there.integer("scope", 0, 2**32 - 1),
        speed=there.integer("speed"),
    )
    there.close()
    try:
        _ = address.network
    except ValueError as error:
        raise there.error("host", address.host, f"an address ({error})") from None
    return Listening(address, fields.integer("port", 1, 65535))
