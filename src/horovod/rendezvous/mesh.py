"""Turns N processes into authenticated peers: those of a host share memory, hosts are connected.

Called by ``meet``, on the thread that called ``init``. All publish who and where they are; ranks of
one place form a host and meet over a Unix socket, then the hosts connect over TCP. Nothing here
outlives the call except the returned ``Mesh``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from horovod.core.base.checked import BadMessageError
from horovod.errors import InitError
from horovod.rendezvous.allgather import StoreAllgather, decode_all
from horovod.rendezvous.base.authentication import derive_key
from horovod.rendezvous.base.failure import as_failure
from horovod.rendezvous.base.membership import Deadline, HostMesh, Mesh, SetLinks
from horovod.rendezvous.capabilities import (
    RankCapabilities,
    decode_card,
    describe_difference,
    encode_card,
    hosts_of,
    split_names,
)
from horovod.rendezvous.host.handshake import Claims
from horovod.rendezvous.host.peer import join_mesh
from horovod.rendezvous.host.root import host_mesh
from horovod.rendezvous.identity.environment import ProcessInfo
from horovod.rendezvous.identity.host_id import HostId, this_place
from horovod.rendezvous.links.linker import Linker
from horovod.rendezvous.store.client import Store

if TYPE_CHECKING:
    from horovod._native import LinkSeals

__all__ = ["Mesh", "connect"]


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
    place: HostId | None = None,
) -> Mesh:
    """Meet all ranks of this world: share ``region_bytes`` with those who can, link to the others.

    Every rank calls it with the same ``size``, ``generation`` (a new one for every attempt) and
    ``region_bytes``. Blocks until all have come and each holds everything, or none does; for up to
    ``timeout_s``, or twice that on a rank that came long before rank 0. Links to other hosts go
    over ``interfaces`` only, if any are named, and end ``link_timeout_s`` after the other end last
    answered; ``protection`` is what those for tensors get (HOROVOD_LINK_PROTECTION). ``place`` is
    where this process is, if not as ``this_place`` finds it.

    Raises:
        InitError: ranks are missing, died, disagree, do not know the secret or cannot reach each
            other; the text names them.
    """
    if sys.platform != "linux":
        raise InitError("init: more than one rank needs Linux in this version")
    key = f"mesh/{identity.scope}{generation}"
    own = RankCapabilities(
        identity.rank,
        identity.size,
        region_bytes,
        os.getpid(),
        identity.hostname,
        identity.node,
        place or this_place(),
    )
    cards, deadline = _meet_all(own, store, secret, key, Deadline(timeout_s))
    hosts = hosts_of(cards)
    _tell_split(own, cards, hosts)
    linker = Linker(
        own.rank,
        cards,
        hosts,
        store,
        secret,
        key,
        start_timeout_s=timeout_s,
        link_timeout_s=link_timeout_s,
        interfaces=interfaces,
        protection=protection,
    )
    # Every card has a token that is new, so that no two worlds have one key.
    object_key = derive_key(secret, b"objects", key.encode(), *map(encode_card, cards))
    claims = Claims(own.rank, own.size, generation, region_bytes)
    if len(hosts) == 1:
        host = _meet_host(claims, hosts, store, secret, key, deadline)
        return _mesh(own.rank, cards, hosts, host, linker, SetLinks(), (), object_key)
    with linker.world_round(deadline) as attempt:
        host = _meet_host(claims, hosts, store, secret, key, deadline)
        try:
            links, news = linker.connect_world(attempt)
        except BaseException:
            host.close()
            raise
    return _mesh(own.rank, cards, hosts, host, linker, links, news, object_key)


def _meet_all(
    own: RankCapabilities, store: Store, secret: bytes, key: str, deadline: Deadline
) -> tuple[list[RankCapabilities], Deadline]:
    """The cards of all ranks, and rank 0's deadline."""

    def problem_of(text: bytes) -> InitError | None:
        try:
            card = decode_card(text)
            difference = describe_difference(own, card)
        except BadMessageError as error:
            return _unfit(str(error))
        return _unfit(difference, card.rank) if difference else None

    gathering = StoreAllgather(
        store,
        secret,
        f"{key}/cards",
        own.rank,
        range(own.size),
        deadline,
        is_meeting=True,
        check=problem_of,
    )
    try:
        _refuse_double(own, gathering.own_value())
        cards = decode_all(range(own.size), gathering.exchange(encode_card(own)), decode_card)
        _refuse_other_ranks(cards)
        _refuse_double(own, encode_card(cards[own.rank]))
    except BaseException as error:
        gathering.fail(as_failure(own.rank, error))
        if isinstance(
            error, InitError
        ):  # two that came at once; then some other rank is missing, which says less
            _refuse_double(own, gathering.own_value())
        raise
    return cards, gathering.deadline


def _refuse_double(own: RankCapabilities, said: bytes | None) -> None:
    """``said`` in the name of our rank must be our own card, if anything."""
    if said is not None:
        (other,) = decode_all([own.rank], [said], decode_card)
        if other.token != own.token:
            pids = f"pids {other.pid}, {own.pid}, if the first is not of an earlier job"
            raise _unfit(f"two processes are rank {own.rank}: {pids}", own.rank) from None


def _refuse_other_ranks(cards: Sequence[RankCapabilities]) -> None:
    """Each card is of the rank in whose name it was said."""
    for rank, card in enumerate(cards):
        if card.rank != rank:
            error = BadMessageError("card", "rank", str(card.rank), str(rank), f"rank {rank}")
            raise _unfit(str(error), rank)


def _unfit(difference: str, *ranks: int) -> InitError:
    return InitError(
        f"init: ranks do not fit together: {difference}; all of them need the same version of "
        "horovod, the same settings and one launcher",
        ranks=ranks,
    )


def _tell_split(
    own: RankCapabilities, cards: Sequence[RankCapabilities], hosts: Sequence[Sequence[int]]
) -> None:
    """One line if the launcher takes for one host what cannot share memory."""
    names = split_names(cards, hosts) if own.rank == 0 else []
    for name in names:
        groups = [[r for r in host if cards[r].hostname == name] for host in hosts]
        shown = " | ".join(",".join(map(str, group)) for group in groups if group)
        sys.stderr.write(
            f"horovod: init: ranks on {name} cannot all share memory, being in different "
            f"containers or namespaces; these are connected by TCP: {shown}\n"
        )


def _meet_host(
    claims: Claims,
    hosts: Sequence[Sequence[int]],
    store: Store,
    secret: bytes,
    key: str,
    deadline: Deadline,
) -> HostMesh:
    members = next(host for host in hosts if claims.rank in host)
    meet = host_mesh if claims.rank == members[0] else join_mesh
    with_bells = len(hosts) > 1
    name = f"{key}/host/{members[0]}"
    return meet(claims, members, with_bells, name, store, secret, deadline)


def _mesh(
    rank: int,
    cards: Sequence[RankCapabilities],
    hosts: tuple[tuple[int, ...], ...],
    host: HostMesh,
    linker: Linker,
    links: SetLinks,
    news: tuple[tuple[int, int, LinkSeals], ...],
    object_key: bytes,
) -> Mesh:
    members = next(group for group in hosts if rank in group)
    pidfds = dict(zip(members, host.pidfds, strict=True))
    bells = dict(zip(members, host.bells, strict=True)) if host.bells else {}
    return Mesh(
        region_fd=host.region_fd,
        pidfds=tuple(pidfds.get(card.rank, -1) for card in cards),
        pids=tuple(card.pid for card in cards),
        hostnames=tuple(card.hostname for card in cards),
        nodes=tuple(card.node for card in cards),
        hosts=hosts,
        bells=tuple(bells.get(card.rank, -1) for card in cards) if bells else (),
        links=links,
        news=news,
        connector=linker.connect_set,
        object_key=object_key,
    )
