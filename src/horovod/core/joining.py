"""How a process joins a world: it finds its rank, connects, and registers the process sets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from horovod.core.assembly import MPI, World, assemble
from horovod.core.base.mpi_library import is_communicator
from horovod.core.process_sets import ProcessSet, open_registry
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
            return _complete(assemble(identity, settings), settings, comm, static_sets)
        except (InitError, HorovodInternalError) as error:
            if client is None:
                raise
            client.note_failure(error)


def _complete(
    world: World,
    settings: Settings,
    comm: Sequence[int] | Any | None,
    static_sets: Sequence[ProcessSet],
) -> World:
    """``world`` with its process sets, which all ranks register together."""
    try:
        open_registry(
            world.engine,
            world.object_key,
            world.identity.rank,
            world.identity.size,
            static_sets,
            settings.dynamic_process_sets,
            world.connect_set,
            world.data_plane,
            comm if is_communicator(comm) else None,
        )
    except BaseException:
        world.end()
        raise
    return world
