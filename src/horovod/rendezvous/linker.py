"""Connects the process sets of one world across its hosts, the world itself first."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from horovod.rendezvous.interfaces import Address, local_addresses
from horovod.rendezvous.link_plan import Link, Purpose, hosts_with
from horovod.rendezvous.link_round import LinkRound
from horovod.rendezvous.membership import Deadline, SetLinks
from horovod.rendezvous.roster import Card
from horovod.rendezvous.store import Store
from horovod.rendezvous.tcp import tune

__all__ = ["Linker"]

_MAX_ADDRESSES = 32


class Linker:
    """What all sets of one world have in common; ``key`` is the world's in the store."""

    def __init__(
        self,
        rank: int,
        cards: Sequence[Card],
        hosts: tuple[tuple[int, ...], ...],
        store: Store,
        secret: bytes,
        key: str,
        *,
        start_timeout_s: float,
        link_timeout_s: float,
        interfaces: Sequence[str],
    ) -> None:
        self._rank = rank
        self._cards = cards
        self._hosts = hosts
        self._store = store
        self._secret = secret
        self._key = key
        self._start_timeout_s = start_timeout_s
        self._link_timeout_s = link_timeout_s
        self._interfaces = interfaces
        self._sets = 0  # asked for so far, the same number on every rank

    def world_round(self, deadline: Deadline) -> LinkRound:
        """The attempt to connect the world; for ``connect_world``."""
        return self._round(self._hosts, "world", deadline, with_news=True)

    def connect_world(self, attempt: LinkRound) -> tuple[SetLinks, tuple[tuple[int, int], ...]]:
        """Links and news of the world."""
        made = attempt.connect(self._own_addresses())
        return self._hand_over(made)

    def connect_set(self, set_id: int, members: Sequence[int]) -> SetLinks:
        """See ``Mesh.connect_set``."""
        self._sets += 1
        hosts = hosts_with(members, self._hosts)
        if self._rank not in members or len(hosts) == 1:
            return SetLinks()
        name = f"set/{self._sets}/{set_id}"
        with self._round(hosts, name, Deadline(self._start_timeout_s)) as attempt:
            return self._hand_over(attempt.connect(self._own_addresses()))[0]

    def _round(
        self,
        hosts: Sequence[Sequence[int]],
        name: str,
        deadline: Deadline,
        *,
        with_news: bool = False,
    ) -> LinkRound:
        return LinkRound(
            self._rank,
            hosts,
            self._cards,
            self._store,
            self._secret,
            f"{self._key}/{name}",
            deadline,
            with_news=with_news,
        )

    def _own_addresses(self) -> list[Address]:
        """All that may lead here; loopback if some other host of the world is behind it as well."""
        network = self._cards[self._rank].place.network
        own_host = next(host for host in self._hosts if self._rank in host)
        is_shared = network != "" and any(
            card.place.network == network for card in self._cards if card.rank not in own_host
        )
        addresses = local_addresses(self._interfaces)
        useful = [a for a in addresses if is_shared or not a.ip.is_loopback]
        return sorted(useful, key=lambda a: a.ip.is_link_local)[:_MAX_ADDRESSES]

    def _hand_over(
        self, made: dict[Link, socket.socket]
    ) -> tuple[SetLinks, tuple[tuple[int, int], ...]]:
        """The descriptors, in the order of hosts and channels."""
        fds: dict[Purpose, list[tuple[Link, int]]] = {purpose: [] for purpose in Purpose}
        for connected in made.values():
            tune(connected, self._link_timeout_s)
        for link in sorted(made, key=lambda link: (link.host, link.channel)):
            fds[link.purpose].append((link, made[link].detach()))
        control = tuple((link.host, fd) for link, fd in fds[Purpose.CONTROL])
        data = tuple((link.host, link.channel, fd) for link, fd in fds[Purpose.DATA])
        return SetLinks(control, data), tuple((link.host, fd) for link, fd in fds[Purpose.NEWS])
