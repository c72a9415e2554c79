"""What a data plane written in Python has to do: one class, five collectives over plain memory.

An engine that moves bytes between processes, an MPI library for instance, becomes a data plane of
Horovod as a subclass of ``Backend``, registered under the entry-point group ``horovod.backends``::

    [project.entry-points."horovod.backends"]
    mine = "my_package.plane:MyBackend"

and chosen with ``HOROVOD_CPU_OPERATIONS=mine``. One object serves one process set; Horovod makes it
on every member at the same time. Everything else is done on Horovod's side: which tensors are ready
where, fusion, scaling, averages, dtypes and operations that the engine does not know, Adasum,
reducescatter. ``python -m horovod.backends.conformance`` shows whether a backend is right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Backend", "Group", "GroupStore", "Request"]

Bytes = NDArray[np.uint8]


class GroupStore(Protocol):
    """Small values that the members of one group see, and nobody else, while they connect."""

    def set(self, key: str, value: bytes) -> None:
        """Store a value of at most 60000 bytes."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """The value of ``key``; blocks until some member has set it, else TimeoutError."""


@dataclass(frozen=True)
class Group:
    """The ranks of a process set, as a backend gets to know them.

    Attributes:
        process_set_id: its number; 0 is the world.
        ranks: the world's numbers of its members. A backend counts them by position.
        rank: this process's position.
        world: the backend of the world; None where this is the world.
        comm: the communicator that the program gave for this set, or None.
        store: for addresses and the like.
        address: an address of this process that the other members reach.
        timeout_s: how long the members may take to connect.
    """

    process_set_id: int
    ranks: tuple[int, ...]
    rank: int
    world: Backend | None
    comm: Any
    store: GroupStore
    address: str
    timeout_s: float

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)


class Request(Protocol):
    """A collective under way."""

    def test(self) -> bool:
        """Whether it is complete on this rank; makes progress where that takes a call.

        Never blocks; is not called again after it was true. Raises when the collective failed.
        """


class Backend(ABC):
    """Collectives of one process set on another engine.

    Construction connects the members, which all do it at the same time; it may block. Every other
    method returns at once. Collectives are started one at a time, the next when the request of the
    one before is complete, in the same order on all members, by one thread of Horovod's, which
    holds the GIL for the call alone. So an object needs no lock; its engine must bear it that other
    objects are used by other threads. Arrays are contiguous and stay until the request is complete,
    or until the world fails: ``test`` is not called again then, and nothing may touch them any more
    (an engine with threads of its own works on copies, as ``GlooBackend``). An exception ends the
    world: it reaches whoever waits for a result as ``HorovodInternalError``.
    """

    #: The dtypes, and the names of reductions, that ``allreduce`` takes.
    dtypes: ClassVar[frozenset[str]] = frozenset({"int32", "int64", "float32", "float64"})
    reductions: ClassVar[frozenset[str]] = frozenset({"sum", "min", "max", "product"})

    def __init__(self, group: Group) -> None:
        self.group = group

    @classmethod
    def why_unavailable(cls) -> str | None:
        """What is missing for this engine here, in words for an error; None if it can be used."""
        return None

    @abstractmethod
    def allreduce(self, array: NDArray[Any], reduction: str) -> Request:
        """Replace ``array`` by the members' sum, minimum, maximum or product, bitwise equal on all.

        Its dtype is one of ``dtypes``, ``reduction`` one of ``reductions``.
        """

    @abstractmethod
    def broadcast(self, array: Bytes, root: int) -> Request:
        """Replace ``array`` by that of the member at position ``root``."""

    @abstractmethod
    def allgather(self, given: Bytes, taken: Bytes, sizes: Sequence[int]) -> Request:
        """Fill ``taken`` with what the members give, one after the other.

        Member ``r`` gives ``sizes[r]`` bytes, which may be 0; ``given`` are this one's.
        """

    @abstractmethod
    def alltoall(
        self, given: Bytes, given_sizes: Sequence[int], taken: Bytes, taken_sizes: Sequence[int]
    ) -> Request:
        """Send each member its part of ``given``; fill ``taken`` with what they send here.

        The parts lie one after the other: ``given_sizes[r]`` bytes for member ``r``,
        ``taken_sizes[r]`` from it. This member's part for itself is among them.
        """

    @abstractmethod
    def barrier(self) -> Request:
        """Be complete when all members have started it."""

    def close(self) -> None:  # noqa: B027 nothing to do for many
        """The end, on each member when it comes to it; after a failure a request may be unfinished.

        Must not wait for other members.
        """
