"""The members of a process group in Horovod's world, and the engine's process set for them.

The default group is the world. A subgroup is a process set that its members alone know: torch calls
no other rank. ``set_numbers`` has its number. Two ranks that exchange messages are a process set
too; see ``peers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property

from torch.distributed import Store  # type: ignore[attr-defined]

from horovod.core import world
from horovod.core.assembly import World
from horovod.core.base.ranks import ranks_text
from horovod.torch.distributed import set_numbers
from horovod.torch.distributed.peers import Calls, Peer, connect, peers_of
from horovod.torch.distributed.set_numbers import SetNumber
from horovod.torch.distributed.work import Unwaited
from horovod.torch.distributed.world import shared_store


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
        self.engine = world_.engine
        self.number = number.number
        self.ranks = list(ranks)
        self.rank = self.ranks.index(world_.identity.rank)
        self.name = name
        self.title = name if self.number else "default"
        self.unwaited = Unwaited()
        self.store: Store | None = store
        self._world = world_
        self._peers = peers_of(world_)
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
            ValueError: the default group is of another backend, or the world's data plane is
                another library.
            InitError: (a ``ValueError``) ranks are missing, make another group or cannot connect,
                or no number is left.
        """
        shared_store()
        found = world.current()
        if found.data_plane is not None:
            raise ValueError(
                f"new_group: Horovod's data plane is {found.data_plane_name}; groups of "
                "torch.distributed need the native one: HOROVOD_CPU_OPERATIONS=native"
            )
        number = set_numbers.agree(found, store, name, ranks, timeout_s)
        links = connect(found, f"set/{number.use}", sorted(ranks), store, timeout_s)
        found.engine.add_process_set(number.number, sorted(ranks), None, *links)
        return cls(found, ranks, number, name, store)

    def peer(self, rank: int) -> Peer:
        """The way to the group's ``rank``, for messages. ``ValueError`` for this process's own."""
        return self._peers.to(self.ranks[rank])

    def known_peers(self) -> dict[int, Peer | None]:
        """The way to each other rank of the group, or None where neither rank has needed it."""
        find, own = self._peers.find, self.rank
        return {rank: find(of) for rank, of in enumerate(self.ranks) if rank != own}

    @property
    def calls(self) -> Calls:
        """From ranks that begin to connect with this one."""
        return self._peers.calls

    @property
    def has_ended(self) -> bool:
        """Whether this rank has left the group."""
        return self.store is None or self._number is None

    @cached_property
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


def seconds(timeout: timedelta | None) -> float:
    """A timeout of torch, of which None is the longest."""
    return 1e9 if timeout is None else timeout.total_seconds()
