"""Connects the process sets of one world across its hosts, the world itself first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.interfaces import Address, local_addresses
from horovod.rendezvous.base.membership import SetLinks
from horovod.rendezvous.base.protection import data_seals, leader_seals
from horovod.rendezvous.base.tcp import tune
from horovod.rendezvous.links.handshake import Connected
from horovod.rendezvous.links.plan import Link, Purpose, hosts_with
from horovod.rendezvous.links.round import LinkRound, World

if TYPE_CHECKING:
    from horovod._native import LinkSeals

    LeaderLinks = tuple[tuple[int, int, LinkSeals], ...]

_MAX_ADDRESSES = 32


@dataclass
class Linker:
    """What all process sets of one world share. ``key`` is the world's key in the store.

    ``link_timeout_s``: a link ends that long after the other end last answered. ``interfaces``: the
    only ones to use, if any are named.
    """

    world: World
    hosts: tuple[tuple[int, ...], ...]
    key: str
    start_timeout_s: float
    link_timeout_s: float
    interfaces: Sequence[str]
    _sets: int = 0  # connected so far; the same number on every rank

    def world_round(self, deadline: Deadline) -> LinkRound:
        """The attempt to connect the world, for ``connect_world``."""
        return LinkRound(self.world, self.hosts, f"{self.key}/world", deadline, with_news=True)

    def connect_world(self, attempt: LinkRound) -> tuple[SetLinks, LeaderLinks]:
        """Links and news of the world."""
        return self._hand_over(attempt, attempt.connect(self._own_addresses()))

    def connect_set(self, set_id: int, members: Sequence[int]) -> SetLinks:
        """See ``Mesh.connect_set``."""
        self._sets += 1
        hosts = hosts_with(members, self.hosts)
        if self.world.rank not in members or len(hosts) == 1:
            return SetLinks()
        key = f"{self.key}/set/{self._sets}/{set_id}"
        with LinkRound(self.world, hosts, key, Deadline(self.start_timeout_s)) as attempt:
            return self._hand_over(attempt, attempt.connect(self._own_addresses()))[0]

    def _own_addresses(self) -> list[Address]:
        """Addresses that may lead here; loopback if another host of the world shares it."""
        own_host = next(host for host in self.hosts if self.world.rank in host)
        is_shared = any(
            self.world.shares_network(rank)
            for host in self.hosts
            if host != own_host
            for rank in host
        )
        addresses = local_addresses(self.interfaces)
        useful = [a for a in addresses if is_shared or not a.ip.is_loopback]
        return sorted(useful, key=lambda a: a.ip.is_link_local)[:_MAX_ADDRESSES]

    def _hand_over(
        self, attempt: LinkRound, made: dict[Link, Connected]
    ) -> tuple[SetLinks, LeaderLinks]:
        """The descriptors and seals, in the order of hosts and channels."""
        data: list[tuple[int, int, int, LinkSeals | None]] = []
        leaders: dict[Purpose, list[tuple[int, int, LinkSeals]]]
        leaders = {Purpose.CONTROL: [], Purpose.NEWS: []}
        for link in sorted(made, key=lambda link: (link.host, link.channel)):
            connected = made[link]
            tune(connected.socket, self.link_timeout_s)
            if link.purpose == Purpose.DATA:
                seals = data_seals(attempt.cipher, connected.keys, self.world.protection)
                data.append((link.host, link.channel, connected.socket.detach(), seals))
            else:
                sealed = leader_seals(attempt.cipher, connected.keys)
                leaders[link.purpose].append((link.host, connected.socket.detach(), sealed))
        control, news = leaders[Purpose.CONTROL], leaders[Purpose.NEWS]
        return SetLinks(tuple(control), tuple(data)), tuple(news)
