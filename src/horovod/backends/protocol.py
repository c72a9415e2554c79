"""The class of a data plane in Python: five collectives over plain memory.

A library that moves bytes between processes, such as MPI, becomes a data plane of Horovod as a
subclass of ``Backend``, registered under the entry-point group ``horovod.backends``::

    [project.entry-points."horovod.backends"]
    mine = "my_package.plane:MyBackend"

and chosen with ``HOROVOD_CPU_OPERATIONS=mine``. One object serves one process set; Horovod makes it
on all members at the same time. Horovod does everything else: negotiation, fusion, scaling,
averages, dtypes and operations that the backend lacks, Adasum, reducescatter.
``python -m horovod.backends.conformance`` tests a backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class GroupStore(Protocol):
    """Small values that the members of one group exchange while they connect."""

    def set(self, key: str, value: bytes) -> None:
        """Store a value of at most 60000 bytes."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """The value of ``key``; blocks until some member has set it, else TimeoutError."""


@dataclass(frozen=True)
class Group:
    """The ranks of a process set, as a backend sees them.

    Attributes:
        process_set_id: its number; 0 is the world.
        ranks: the members' ranks in the world. A backend counts members by position.
        rank: this process's position.
        world: the backend of the world; None if this is the world.
        comm: the communicator that the program gave for this set, or None.
        store: for addresses and similar values.
        address: an address of this process that the other members can reach.
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
    """A collective in progress."""

    def test(self) -> bool:
        """Whether it is complete on this rank; makes progress if the library needs calls for it.

        Never blocks; not called again after it returned true. Raises if the collective failed.
        """


class Backend(ABC):
    """Collectives of one process set through another library.

    All members construct it at the same time; construction connects them and may block. Every other
    method returns at once. One thread of Horovod starts the collectives, one at a time, in the same
    order on all members; it holds the GIL only during the call. The next collective starts when the
    request of the last one is complete. So an object needs no lock, but other threads may use other
    objects of the library. Arrays are contiguous. They are valid until the request is complete or
    the world fails; after a failure ``test`` is not called again and the arrays must not be used (a
    library with its own threads works on copies, as ``GlooBackend``). An exception ends the world:
    all waiting calls raise ``HorovodInternalError``.
    """

    #: The dtypes, and the names of reductions, that ``allreduce`` takes.
    dtypes: ClassVar[frozenset[str]] = frozenset({"int32", "int64", "float32", "float64"})
    reductions: ClassVar[frozenset[str]] = frozenset({"sum", "min", "max", "product"})

    def __init__(self, group: Group) -> None:
        self.group = group

    @classmethod
    def why_unavailable(cls) -> str | None:
        """The reason why this backend cannot be used here, as text for an error; None if it can."""
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

        Member ``r`` gives ``sizes[r]`` bytes, which may be 0; ``given`` are those of this member.
        """

    @abstractmethod
    def alltoall(
        self, given: Bytes, given_sizes: Sequence[int], taken: Bytes, taken_sizes: Sequence[int]
    ) -> Request:
        """Send each member its part of ``given``; fill ``taken`` with what they send here.

        The parts are one after the other: ``given_sizes[r]`` bytes for member ``r``,
        ``taken_sizes[r]`` bytes from it. They include this member's part for itself.
        """

    @abstractmethod
    def barrier(self) -> Request:
        """A request that is complete when all members have started it."""

    def close(self) -> None:  # noqa: B027 nothing to do for many
        """Free resources, without waiting for other members.

        After a failure a request may be unfinished.
        """
