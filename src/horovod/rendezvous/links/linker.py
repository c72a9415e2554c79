"""Connects the process sets of one world across its hosts, the world itself first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from horovod.rendezvous.base.interfaces import Address, local_addresses
from horovod.rendezvous.base.membership import Deadline, SetLinks
from horovod.rendezvous.base.protection import data_seals, leader_seals
from horovod.rendezvous.base.tcp import tune
from horovod.rendezvous.capabilities import RankCapabilities
from horovod.rendezvous.links.handshake import Connected
from horovod.rendezvous.links.plan import Link, Purpose, hosts_with
from horovod.rendezvous.links.round import LinkRound
from horovod.rendezvous.store.client import Store

if TYPE_CHECKING:
    from horovod._native import LinkSeals

__all__ = ["Linker"]

_MAX_ADDRESSES = 32


class Linker:
    """What all sets of one world have in common; ``key`` is the world's in the store."""

    def __init__(
        self,
        rank: int,
        cards: Sequence[RankCapabilities],
        hosts: tuple[tuple[int, ...], ...],
        store: Store,
        secret: bytes,
        key: str,
        *,
        start_timeout_s: float,
        link_timeout_s: float,
        interfaces: Sequence[str],
        protection: str,
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
        self._protection = protection
        self._sets = 0  # asked for so far, the same number on every rank

    def world_round(self, deadline: Deadline) -> LinkRound:
        """The attempt to connect the world; for ``connect_world``."""
        return self._round(self._hosts, "world", deadline, with_news=True)

    def connect_world(
        self, attempt: LinkRound
    ) -> tuple[SetLinks, tuple[tuple[int, int, LinkSeals], ...]]:
        """Links and news of the world."""
        made = attempt.connect(self._own_addresses())
        return self._hand_over(attempt, made)

    def connect_set(self, set_id: int, members: Sequence[int]) -> SetLinks:
        """See ``Mesh.connect_set``."""
        self._sets += 1
        hosts = hosts_with(members, self._hosts)
        if self._rank not in members or len(hosts) == 1:
            return SetLinks()
        name = f"set/{self._sets}/{set_id}"
        with self._round(hosts, name, Deadline(self._start_timeout_s)) as attempt:
            return self._hand_over(attempt, attempt.connect(self._own_addresses()))[0]

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
            self._protection,
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
        self, attempt: LinkRound, made: dict[Link, Connected]
    ) -> tuple[SetLinks, tuple[tuple[int, int, LinkSeals], ...]]:
        """The descriptors, in the order of hosts and channels, and what seals each of them."""
        data: list[tuple[int, int, int, LinkSeals | None]] = []
        leaders: dict[Purpose, list[tuple[int, int, LinkSeals]]]
        leaders = {Purpose.CONTROL: [], Purpose.NEWS: []}
        for link in sorted(made, key=lambda link: (link.host, link.channel)):
            connected = made[link]
            tune(connected.socket, self._link_timeout_s)
            if link.purpose == Purpose.DATA:
                seals = data_seals(attempt.cipher, connected.keys, self._protection)
                data.append((link.host, link.channel, connected.socket.detach(), seals))
            else:
                sealed = leader_seals(attempt.cipher, connected.keys)
                leaders[link.purpose].append((link.host, connected.socket.detach(), sealed))
        control, news = leaders[Purpose.CONTROL], leaders[Purpose.NEWS]
        return SetLinks(tuple(control), tuple(data)), tuple(news)
