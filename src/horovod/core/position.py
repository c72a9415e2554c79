"""The position of this process: in a world, with a provisional rank, in a forked child, or none.

``world`` changes it. Its questions are answered here, without a word to other ranks, and programs
and bindings find them in ``horovod.core.world``. A forked child is in no world, but it keeps the
numbers of its parent (``joining``).
"""

from __future__ import annotations

import os

from horovod.core.assembly import MPI, World
from horovod.core.base.cores import usable_cores
from horovod.core.joining import Parent, ProvisionalRank
from horovod.core.process_sets import ProcessSet, number_of
from horovod.rendezvous.bootstrap import ProcessInfo
from horovod.settings import Settings

_TOO_EARLY = (
    "this process is about to join an elastic job that is running, and the other ranks do not run "
    "this part of the program: move the call into the function under hvd.elastic.run; what "
    "broadcasts before it would do, sync of the elastic state does"
)


class Position:
    """What this process is now; at most one of the three is there."""

    world: World | None = None
    provisional: ProvisionalRank | None = None  # in place of a world
    parent: Parent | None = None  # in a forked child of a process that was in a world

    def identity(self) -> ProcessInfo:
        """The numbers of this process, or of its parent. ``ValueError`` before ``init``."""
        if self.provisional is not None:
            return self.provisional.identity
        return self.parent.identity if self.parent is not None else self.joined().identity

    def joined(self) -> World:
        """The world of this process. ``ValueError`` where it is in none."""
        if self.parent is not None:
            raise ValueError(self.parent.refusal)
        if self.provisional is not None:
            raise ValueError(_TOO_EARLY)
        if self.world is None:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
        return self.world


here = Position()


def is_initialized() -> bool:
    """Whether this process is in a world: ``init`` succeeded and ``shutdown`` was not called.

    For the bindings. What programs call ``is_initialized`` is ``has_place``.
    """
    return here.world is not None or here.provisional is not None


def has_place() -> bool:
    """Whether this process, or the one it was forked from, is in a world, so ``rank`` answers."""
    return is_initialized() or here.parent is not None


def settings() -> Settings:
    """What ``init`` read from the environment. ``ValueError`` before ``init``."""
    return here.provisional.settings if here.provisional is not None else here.joined().settings


def has_others(process_set: ProcessSet) -> bool:
    """Whether this process is a member of a set, with others.

    Not while it has a provisional rank: others train already, so what the program tries before it
    joins them it does alone.

    Raises:
        ValueError: before ``init``, or the set is not registered: each rank would train alone.
    """
    if here.provisional is not None:
        return False
    number_of(process_set)
    return (process_set.size() or 1) > 1 and bool(process_set.included())


def has_spare_cores() -> bool:
    """Whether there are more cores here than ranks. ``ValueError`` before ``init``."""
    if here.provisional is not None:
        return usable_cores() > here.provisional.identity.local_size
    return here.joined().engine.has_spare_cores


def rank() -> int:
    """Number of this process in the world, from 0. ``ValueError`` before ``init``."""
    return here.identity().rank


def size() -> int:
    """Number of processes in the world. ``ValueError`` before ``init``."""
    return here.identity().size


def local_rank() -> int:
    """Number of this process on its host, from 0. ``ValueError`` before ``init``."""
    return here.identity().local_rank


def local_size() -> int:
    """Number of processes on this host. ``ValueError`` before ``init``."""
    return here.identity().local_size


def cross_rank() -> int:
    """Number of this host among those that have this local rank. ``ValueError`` before ``init``."""
    return here.identity().cross_rank


def cross_size() -> int:
    """Number of hosts that have this local rank. ``ValueError`` before ``init``."""
    return here.identity().cross_size


def is_homogeneous() -> bool:
    """Whether every host runs the same number of processes. ``ValueError`` before ``init``."""
    identity = here.identity()
    return identity.local_size * identity.cross_size == identity.size


def mpi_enabled() -> bool:
    """Whether the data of this run goes over MPI; before ``init``, whether it is going to."""
    if here.parent is not None:
        return here.parent.mpi_enabled
    if here.world is not None:
        return here.world.data_plane_name == MPI
    return os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower() == MPI


def gloo_enabled() -> bool:
    """Whether this run does without MPI, on the native engine, Gloo or another data plane."""
    return not mpi_enabled()
