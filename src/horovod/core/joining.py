"""How a process joins a world: it finds its rank, connects, and registers the process sets.

The arguments of ``init`` are checked before. Forked children keep numbers of their parent's world,
and the text that refuses the rest: data loaders fork workers, which ask for their rank to choose
their part of the data. Connections, shared memory and the engine's threads are the parent's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from horovod.core.assembly import MPI, EngineError, World, assemble
from horovod.core.base.mpi_library import is_communicator
from horovod.core.base.on_error import on_error
from horovod.core.process_sets import ProcessSet, Registry, open_registry, proposal_of
from horovod.errors import HorovodInternalError, InitError
from horovod.rendezvous.bootstrap import ProcessInfo, recognise, this_client
from horovod.settings import Settings


@dataclass(frozen=True)
class ProvisionalRank:
    """The rank that this process will probably have, and what ``init`` was called with."""

    identity: ProcessInfo
    settings: Settings
    comm: Any
    static_sets: Sequence[ProcessSet]
    pid: int = field(default_factory=os.getpid)


class Parent(NamedTuple):
    """The process that this one was forked from, directly or not, as it was at the fork."""

    identity: ProcessInfo
    pid: int
    mpi_enabled: bool

    @property
    def refusal(self) -> str:
        """Why this process cannot do what only its parent can."""
        return (
            f"this process was forked from rank {self.identity.rank} (pid {self.pid}), which alone "
            "can use Horovod's collectives; hvd.rank() and hvd.size() work here"
        )


def join_as(identity: ProcessInfo, settings: Settings) -> World:
    """A complete world of processes whose ranks the program has said."""
    return _assemble(identity, settings, None, ())


def join_world(
    settings: Settings, comm: Sequence[int] | Any | None, static_sets: Sequence[ProcessSet]
) -> World | ProvisionalRank:
    """A complete world. In an elastic job a failed attempt is followed by another one.

    The driver ends the job when no attempt can succeed.
    """
    client = this_client(os.environ)
    while True:
        identity = recognise(
            os.environ,
            settings.start_timeout_s,
            comm,
            by_mpi=settings.cpu_operations.lower() == MPI,
            mpi_threads=not settings.mpi_threads_disable,
        )
        if identity.is_provisional:
            return ProvisionalRank(identity, settings, comm, static_sets)
        try:
            return _assemble(identity, settings, comm, static_sets)
        except (InitError, HorovodInternalError) as error:
            if client is None or isinstance(error, EngineError):
                raise
            client.note_failure(error)


def _assemble(
    identity: ProcessInfo,
    settings: Settings,
    comm: Sequence[int] | Any | None,
    static_sets: Sequence[ProcessSet],
) -> World:
    """A world with its process sets, which all ranks register together."""
    proposal = proposal_of(static_sets, settings.dynamic_process_sets, identity.size)
    world = assemble(identity, settings, proposal)
    with on_error(world.end):
        registry = Registry(
            world.engine,
            world.object_key,
            world.identity.rank,
            world.identity.size,
            world.settings.dynamic_process_sets,
            world.connect_set,
            world.data_plane,
            comm if is_communicator(comm) else None,
        )
        open_registry(registry, static_sets, is_agreed=world.is_agreed)
    return world


def static_sets_of(process_sets: Sequence[ProcessSet] | str | None) -> Sequence[ProcessSet]:
    """The sets to register; for "dynamic" none, and it sets the variable that allows later ones.

    Raises:
        ValueError: ``process_sets`` is something else.
    """
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f"init: process_sets={process_sets!r}: expected 'dynamic' or a list of ProcessSet"
            )
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        return []
    if isinstance(process_sets, ProcessSet):
        raise ValueError(f"init: process_sets: expected a list, found {process_sets}")
    static_sets = list(process_sets or [])
    for entry in static_sets:
        if not isinstance(entry, ProcessSet):
            raise ValueError(f"init: process_sets: expected ProcessSet objects, found {entry!r}")
    return static_sets


def check_comm(comm: Any, static_sets: Sequence[ProcessSet]) -> None:
    """Refuse a ``comm`` that is no list of ranks and no communicator.

    Raises:
        ValueError: it is something else.
        NotImplementedError: sets are communicators, and ``comm`` is none.
    """
    if is_communicator(comm):
        return
    if any(process_set.mpi_comm is not None for process_set in static_sets):
        raise NotImplementedError(
            "init: process sets of mpi4py communicators need a communicator as comm, too"
        )
    if comm is None:
        return
    if not isinstance(comm, (list, tuple, range)):
        raise ValueError(f"Invalid type of argument comm: expected a list of ranks, found {comm!r}")
    if any(map(is_communicator, comm)):
        raise ValueError(
            "init: comm takes one communicator; give the others as process_sets=[ProcessSet(comm)]"
        )
    if not all(isinstance(rank, int) for rank in comm):
        raise ValueError(f"Invalid type of argument comm: expected a list of ranks, found {comm!r}")
