"""The members of a process group in Horovod's world, and the engine's process set for them.

The default group is the world. A subgroup is a process set that its members alone know: torch calls
no other rank. ``set_numbers`` has its number. Two ranks that exchange messages are a process set
too, whose number follows from the two ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from horovod.core import world
from horovod.core.base.ranks import ranks_text
from horovod.torch.distributed import set_numbers
from horovod.torch.distributed.set_numbers import SetNumber
from horovod.torch.distributed.work import Unwaited
from horovod.torch.distributed.world import shared_store, store_of

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from horovod import _native
    from horovod.core.assembly import World


class Members:
    """The ranks of one process group, and the set in which they run collectives.

    Attributes:
        engine: of the world.
        number: of the process set.
        ranks: of the world, in the group's order; those of the process set are in rising order.
        rank: this process's position among them.
        name, title: of the group, for torch and in messages.
        unwaited: of their operations.
        store: torch's, of the group; None when the group has ended.
    """

    def __init__(
        self, world_: World, ranks: Sequence[int], number: SetNumber, name: str, store: Store
    ) -> None:
        self.engine: _native.Engine = world_.engine
        self.number = number.number
        self.ranks = list(ranks)
        self.rank = self.ranks.index(world_.identity.rank)
        self.name = name
        self.title = name if self.number else "default"
        self.unwaited = Unwaited()
        self.store: Store | None = store
        self._world = world_
        self._number: SetNumber | None = number  # until this rank has left

    @classmethod
    def of_world(cls, name: str) -> Members:
        """All ranks."""
        found = world.current()
        return cls(found, range(found.identity.size), SetNumber(0, 0), name, shared_store())

    @classmethod
    def of_group(cls, store: Store, name: str, ranks: Sequence[int], timeout_s: float) -> Members:
        """Some ranks, in a new process set; blocks until all of them are here.

        Raises:
            ValueError: the world's data plane is another library.
            InitError: (a ``ValueError``) ranks are missing, make another group or cannot connect,
                or no number is left.
        """
        found = world.current()
        if found.data_plane is not None:
            raise ValueError(
                f"new_group: Horovod's data plane is {found.data_plane_name}; groups of "
                "torch.distributed need the native one: HOROVOD_CPU_OPERATIONS=native"
            )
        number = set_numbers.agree(found, store, name, ranks, timeout_s)
        links = _links(found, f"set/{number.use}", sorted(ranks), store, timeout_s)
        found.engine.add_process_set(number.number, sorted(ranks), None, *links)
        return cls(found, ranks, number, name, store)

    def peer(self, rank: int) -> Peer:
        """The way to the group's ``rank``, for messages. ``ValueError`` for this process's own."""
        return peer_in(self._world, self.ranks[rank])

    @property
    def is_on_one_host(self) -> bool:
        """Whether all members share memory."""
        return any(set(self.ranks) <= set(host) for host in self._world.hosts)

    def leave(self) -> None:
        """Fail what is pending in the group's set, and forget the set."""
        number, self._number = self._number, None
        if self.number != 0 and number is not None:
            self.engine.remove_process_set(self.number)
            set_numbers.give_back(self._world, number, self.ranks)

    def missing_ranks(self, handle: int) -> list[int]:
        """The world's ranks that have not started the operation of ``handle``."""
        return self.engine.missing_ranks(handle)

    def late(self, handle: int) -> str:
        """Which ranks are late for the operation of ``handle``, for messages."""
        missing = self.missing_ranks(handle)
        return f"{ranks_text(missing)} did not start it" if missing else "it is under way"


# Of one world: by rank.
_peers: dict[int, Peer] = {}
_peers_of: World | None = None


def peer_in(found: World, rank: int) -> Peer:
    """The way to ``rank`` of this world; all groups share it."""
    global _peers_of
    if _peers_of is not found:
        _peers.clear()
        _peers_of = found
    if rank not in _peers:
        _peers[rank] = Peer(found, rank)
    return _peers[rank]


class Peer:
    """The process set of this rank and another one; connected when it is first needed.

    Ranks of one host are connected already. To another host a thread connects, since the other rank
    may be waiting for a third one: what is started meanwhile waits in the order of its start.
    """

    def __init__(self, found: World, peer: int) -> None:
        self._engine: _native.Engine = found.engine
        self._lock = threading.Lock()
        self._waiting: list[tuple[Callable[[int], object], Callable[[Exception], object]]] = []
        self._error: Exception | None = None
        self.number: int | None = None
        own = found.identity.rank
        if any(own in host and peer in host for host in found.hosts):
            self.number = found.engine.add_pair(peer)
            return
        pair = sorted((own, peer))
        arguments = (found, f"pair/{pair[0]}/{pair[1]}", pair, shared_store(), peer)
        threading.Thread(target=self._connect, args=arguments, daemon=True).start()

    def when_connected(
        self, start: Callable[[int], object], fail: Callable[[Exception], object]
    ) -> None:
        """Call ``start`` with the number of the set, or ``fail``: now, or on another thread."""
        with self._lock:
            if self._error is None and self.number is None:
                self._waiting.append((start, fail))
            elif self._error is not None:
                fail(self._error)
            else:
                self._start(start, fail)

    def _connect(self, found: World, key: str, pair: list[int], store: Store, peer: int) -> None:
        try:
            timeout_s = found.settings.start_timeout_s
            links = _links(found, key, pair, store, timeout_s)
            number = self._engine.add_pair(peer, *links)
        except (ValueError, RuntimeError) as error:
            with self._lock:
                self._error = error
                for _, fail in self._waiting:
                    fail(error)
                self._waiting.clear()
            return
        with self._lock:
            self.number = number
            for start, fail in self._waiting:
                self._start(start, fail)
            self._waiting.clear()

    def _start(self, start: Callable[[int], object], fail: Callable[[Exception], object]) -> None:
        assert self.number is not None
        try:
            start(self.number)
        except (ValueError, RuntimeError) as error:
            fail(error)


def _links(
    found: World, key: str, ranks: Sequence[int], store: Store, timeout_s: float
) -> tuple[list[Any], list[Any]]:
    if found.connect_members is None:
        return [], []
    limit_s = max(found.settings.start_timeout_s, timeout_s)
    links = found.connect_members(key, ranks, store_of(store), limit_s)
    return list(links.control), list(links.data)


def seconds(timeout: timedelta | None) -> float:
    """A timeout of torch, of which None is the longest."""
    return 1e9 if timeout is None else timeout.total_seconds()
