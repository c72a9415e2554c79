"""Turns N processes into authenticated peers: ranks of a host share memory, hosts are connected.

``bootstrap.meet`` calls it on the thread that called ``init``. All ranks publish who and where they
are. Ranks with the same host id connect over a Unix socket, then the hosts connect over TCP.
Nothing here outlives the call except the returned ``Mesh``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from horovod.core.base.checked import BadMessageError
from horovod.core.base.on_error import on_error
from horovod.errors import InitError
from horovod.rendezvous.allgather import StoreAllgather, decode_all, decode_of
from horovod.rendezvous.base.authentication import derive_key
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.interfaces import Address, local_addresses
from horovod.rendezvous.base.membership import HostMesh, Mesh, SetLinks, as_failure, misfit
from horovod.rendezvous.base.protection import data_seals, leader_seals
from horovod.rendezvous.base.tcp import tune
from horovod.rendezvous.capabilities import (
    RankCapabilities,
    capabilities_in,
    hosts_of,
    is_agreed,
    offers_in,
    said_of,
    split_names,
)
from horovod.rendezvous.host.handshake import Claims, HostGroup
from horovod.rendezvous.host.peer import join_mesh
from horovod.rendezvous.host.root import host_mesh
from horovod.rendezvous.identity.environment import ProcessInfo
from horovod.rendezvous.identity.host_id import HostId, this_host_id
from horovod.rendezvous.links.dialing import LinkAttempt
from horovod.rendezvous.links.handshake import Connected
from horovod.rendezvous.links.plan import Link, Purpose, hosts_with
from horovod.rendezvous.links.round import LinkRound, LinkSettings, World, offer_of
from horovod.rendezvous.store.client import Store

if TYPE_CHECKING:
    from horovod._native import LinkSeals

    LeaderLinks = tuple[tuple[int, int, LinkSeals], ...]

_MAX_ADDRESSES = 32


def connect(
    identity: ProcessInfo,
    store: Store,
    secret: bytes,
    generation: int,
    region_bytes: int,
    timeout_s: float,
    *,
    link_timeout_s: float = 30.0,
    interfaces: Sequence[str] = (),
    protection: str = "control",
    connections: int = 1,
    proposal: str = "",
    host_id: HostId | None = None,
) -> Mesh:
    """Connect all ranks of this world: share ``region_bytes`` on this host, link to other hosts.

    Every rank calls it with the same ``size``, ``generation`` (a new one for every attempt) and
    ``region_bytes``. Blocks until every rank has everything, or none does: for up to ``timeout_s``,
    or twice that on a rank that starts long before rank 0.

    Args:
        link_timeout_s: a link ends that long after the other end last answered.
        interfaces: the only network interfaces for links to other hosts, if any are named.
        protection: of the links that carry tensors (HOROVOD_LINK_PROTECTION).
        connections: that carry tensors between two hosts, at least (HOROVOD_LINK_CONNECTIONS).
        proposal: see ``RankCapabilities``.
        host_id: of this process, if not ``this_host_id()``.

    Raises:
        InitError: ranks are missing, died, disagree, do not know the secret or cannot reach each
            other; the text names them.
    """
    if sys.platform != "linux":
        raise InitError("init: more than one rank needs Linux in this version")
    key = f"mesh/{identity.scope}{generation}"
    place = (identity.hostname, identity.node, host_id or this_host_id())
    own = RankCapabilities(
        identity.rank, identity.size, region_bytes, os.getpid(), *place, proposal
    )
    settings = LinkSettings(protection, connections)
    with ExitStack() as stack:
        attempt, offer = _listen(identity, secret, interfaces), b""
        if attempt is not None:
            stack.enter_context(closing(attempt))
            offer = offer_of(attempt.listener.listening, settings)
        ranks, said, deadline = _exchange(own, offer, store, secret, key, Deadline(timeout_s))
        hosts = hosts_of(ranks)
        _warn_of_split(own, ranks, hosts)
        world = World(own.rank, ranks, store, secret, settings)
        linker = Linker(world, hosts, key, timeout_s, link_timeout_s, interfaces)
        # Each token is new, so no two worlds have the same key.
        object_key = derive_key(secret, b"objects", key.encode(), *said)
        claims = Claims(own.rank, own.size, generation, region_bytes)
        if len(hosts) == 1:
            return linker.mesh(linker.connect_host(claims, deadline), SetLinks(), (), object_key)
        with linker.world_round(deadline, offers_in(said)) as round_:
            host = linker.connect_host(claims, deadline)
            with on_error(host.close):
                links, news = linker.connect_world(round_, attempt)
        return linker.mesh(host, links, news, object_key)


def _listen(identity: ProcessInfo, secret: bytes, interfaces: Sequence[str]) -> LinkAttempt | None:
    """An attempt that listens before the ranks know of each other, if there are other hosts.

    None too if that fails for whatever reason: it fails again when the hosts are connected, and all
    ranks are told. An error here would reach no other rank, and all would wait for this one.
    """
    if identity.local_size >= identity.size:
        return None
    try:
        return LinkAttempt(identity.rank, secret, _cut(local_addresses(interfaces)))
    except Exception:
        return None


def _cut(addresses: Sequence[Address]) -> list[Address]:
    """Not too many of them, which others have to try; link-local ones are the last to be kept."""
    return sorted(addresses, key=lambda a: a.ip.is_link_local)[:_MAX_ADDRESSES]


def _exchange(
    own: RankCapabilities,
    offer: bytes,
    store: Store,
    secret: bytes,
    key: str,
    deadline: Deadline,
) -> tuple[list[RankCapabilities], list[bytes], Deadline]:
    """The capabilities of all ranks, also as they were sent, and rank 0's deadline."""

    def problem_of(_: int, text: bytes) -> InitError | None:
        try:
            other = capabilities_in(text)
        except BadMessageError as error:
            return misfit(str(error))
        mismatch = own.mismatch(other)
        return misfit(mismatch, other.rank) if mismatch else None

    name, everyone = f"{key}/capabilities", range(own.size)
    allgather = StoreAllgather(
        store,
        secret,
        name,
        own.rank,
        everyone,
        deadline,
        is_bootstrap=True,
        check=problem_of,
        check_earlier=partial(_problem_of_double, own),
    )
    try:
        said = allgather.exchange(said_of(own, offer))
        ranks = decode_all(everyone, said, capabilities_in)
        _refuse_other_ranks(ranks)
        _refuse_double(own, said[own.rank])
    except BaseException as error:
        allgather.fail(as_failure(own.rank, error))
        # If two processes came as one rank at once, another rank is missing, which says less.
        if isinstance(error, InitError) and (earlier := allgather.own_value()) is not None:
            _refuse_double(own, earlier)
        raise
    return ranks, said, allgather.deadline


def _problem_of_double(own: RankCapabilities, said: bytes) -> InitError | None:
    """The error if another process has published capabilities, ``said``, as this rank."""
    try:
        other = decode_of(own.rank, said, capabilities_in)
    except InitError as error:
        return error
    if other.token == own.token:
        return None
    two = f"two processes are rank {own.rank}: pids {other.pid}, {own.pid}"
    if "__mp_main__" in sys.modules:
        return misfit(
            f"{two}; multiprocessing has started this one, by spawn or forkserver, which run the "
            "program's file again: call hvd.init() below if __name__ == '__main__'",
            own.rank,
        )
    return misfit(f"{two}, if the first is not of an earlier job", own.rank)


def _refuse_double(own: RankCapabilities, said: bytes) -> None:
    if (problem := _problem_of_double(own, said)) is not None:
        raise problem from None


def _refuse_other_ranks(ranks: Sequence[RankCapabilities]) -> None:
    """InitError if a process has published the capabilities of another rank."""
    for rank, each in enumerate(ranks):
        if each.rank != rank:
            sender = f"rank {rank}"
            error = BadMessageError("capabilities", "rank", str(each.rank), str(rank), sender)
            raise misfit(str(error), rank)


def _warn_of_split(
    own: RankCapabilities, ranks: Sequence[RankCapabilities], hosts: Sequence[Sequence[int]]
) -> None:
    """Rank 0 writes one line for each host name whose ranks cannot share memory."""
    names = split_names(ranks, hosts) if own.rank == 0 else []
    for name in names:
        groups = [[r for r in host if ranks[r].hostname == name] for host in hosts]
        shown = " | ".join(",".join(map(str, group)) for group in groups if group)
        sys.stderr.write(
            f"horovod: init: ranks on {name} cannot all share memory, being in different "
            f"containers or namespaces; these are connected by TCP: {shown}\n"
        )


@dataclass
class Linker:
    """The data that all process sets of one world share. ``key`` is the world's key in the store.

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

    def connect_host(self, claims: Claims, deadline: Deadline) -> HostMesh:
        """What the ranks of this host share."""
        members = self._members_here()
        key = f"{self.key}/host/{members[0]}"
        spans_hosts = len(self.hosts) > 1
        where = self.world.store, self.world.secret, deadline
        group = HostGroup(claims, members, spans_hosts, key, *where)
        return host_mesh(group) if self.world.rank == members[0] else join_mesh(group)

    def _members_here(self) -> tuple[int, ...]:
        return next(host for host in self.hosts if self.world.rank in host)

    def world_round(self, deadline: Deadline, offers: Sequence[bytes]) -> LinkRound:
        """The attempt to connect the world, for ``connect_world``; ``offers`` as in LinkRound."""
        key = f"{self.key}/world"
        return LinkRound(self.world, self.hosts, key, deadline, with_news=True, offers=offers)

    def connect_world(
        self, round_: LinkRound, attempt: LinkAttempt | None
    ) -> tuple[SetLinks, LeaderLinks]:
        """Links and news of the world; ``attempt`` listens already, if there is one."""
        if attempt is None:
            return self._connect_links(round_)
        return self._hand_over(round_, round_.connect(attempt, self._own_addresses()))

    def mesh(self, host: HostMesh, links: SetLinks, news: LeaderLinks, object_key: bytes) -> Mesh:
        """What this rank has of the world."""
        ranks = self.world.capabilities
        members = self._members_here()
        pidfds = dict(zip(members, host.pidfds, strict=True))
        doorbells = dict(zip(members, host.doorbells, strict=True)) if host.doorbells else {}
        return Mesh(
            region_fd=host.region_fd,
            pidfds=tuple(pidfds.get(each.rank, -1) for each in ranks),
            pids=tuple(each.pid for each in ranks),
            hostnames=tuple(each.hostname for each in ranks),
            nodes=tuple(each.node for each in ranks),
            hosts=self.hosts,
            doorbells=tuple(doorbells.get(each.rank, -1) for each in ranks) if doorbells else (),
            links=links,
            news=news,
            connector=self,
            object_key=object_key,
            is_agreed=is_agreed(ranks),
        )

    def connect_set(self, set_id: int, members: Sequence[int]) -> SetLinks:
        """See ``SetConnector``."""
        self._sets += 1
        if self.world.rank not in members:
            return SetLinks()
        key = f"{self.key}/set/{self._sets}/{set_id}"
        return self._connect(key, members, self.world, self.start_timeout_s)

    def connect_members(
        self, key: str, members: Sequence[int], store: Store, timeout_s: float
    ) -> SetLinks:
        """See ``SetConnector``."""
        world = self.world._replace(store=store)
        return self._connect(f"{self.key}/members/{key}", members, world, timeout_s)

    def _connect(
        self, key: str, members: Sequence[int], world: World, timeout_s: float
    ) -> SetLinks:
        hosts = hosts_with(members, self.hosts)
        if len(hosts) == 1:
            return SetLinks()
        with LinkRound(world, hosts, key, Deadline(timeout_s)) as round_:
            return self._connect_links(round_)[0]

    def _connect_links(self, round_: LinkRound) -> tuple[SetLinks, LeaderLinks]:
        addresses = self._own_addresses()
        with closing(LinkAttempt(self.world.rank, self.world.secret, addresses)) as attempt:
            return self._hand_over(round_, round_.connect(attempt, addresses))

    def _own_addresses(self) -> list[Address]:
        """Addresses that may lead here; loopback if another host of the world shares it."""
        own_host = self._members_here()
        is_shared = any(
            self.world.shares_network(rank)
            for host in self.hosts
            if host != own_host
            for rank in host
        )
        addresses = local_addresses(self.interfaces)
        useful = [a for a in addresses if is_shared or not a.ip.is_loopback]
        return _cut(useful)

    def _hand_over(
        self, round_: LinkRound, made: dict[Link, Connected]
    ) -> tuple[SetLinks, LeaderLinks]:
        """The descriptors and seals, in the order of hosts and channels."""
        data: list[tuple[int, int, int, LinkSeals | None]] = []
        leaders: dict[Purpose, list[tuple[int, int, LinkSeals]]]
        leaders = {Purpose.CONTROL: [], Purpose.NEWS: []}
        for link in sorted(made, key=lambda link: (link.host, link.channel)):
            connected = made[link]
            tune(connected.socket, self.link_timeout_s)
            if link.purpose == Purpose.DATA:
                seals = data_seals(round_.cipher, connected.keys, self.world.settings.protection)
                data.append((link.host, link.channel, connected.socket.detach(), seals))
            else:
                sealed = leader_seals(round_.cipher, connected.keys)
                leaders[link.purpose].append((link.host, connected.socket.detach(), sealed))
        control, news = leaders[Purpose.CONTROL], leaders[Purpose.NEWS]
        return SetLinks(tuple(control), tuple(data)), tuple(news)
