"""Process sets: named subsets of the world that run collectives of their own.

    evens = hvd.add_process_set([0, 2])
    hvd.allreduce(tensor, process_set=evens)

All ranks of the world register the same sets, at ``init`` or, in dynamic mode, later; only members
may use one. Sets may overlap, and operations on different sets never wait for each other. ``world``
opens the registry when a world begins and closes it at its end. The engine allocates for a set when
it is first used.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from horovod.backends.data_plane import DataPlane
from horovod.core.process_set import (
    ProcessSet,
    current_registry,
    global_process_set,
    replace_registry,
)
from horovod.core.process_set_registry import ConnectSet, Registry

if TYPE_CHECKING:
    from horovod import _native

__all__ = [
    "ConnectSet",
    "ProcessSet",
    "add_process_set",
    "check_process_set",
    "close_registry",
    "global_process_set",
    "has_others",
    "ids_and_ranks",
    "number_of",
    "open_registry",
    "remove_process_set",
]
_DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set; blocks until every rank of the world has called it alike.

    Args:
        process_set: the set, or its ranks; the same on every rank, members or not, and in the same
            order among all calls of ``add_process_set`` and ``remove_process_set``.

    Returns:
        The registered set.

    Raises:
        ValueError: Horovod is not initialized or not in dynamic mode; on some rank the set is a
            duplicate or has ranks that do not exist, which is raised on all ranks.
        InitError: (a ``ValueError``) its ranks are on several hosts and cannot be connected.
        NotImplementedError: the set is a communicator; ``init`` alone takes those.
        MismatchError: ranks want different changes.
    """
    registry = _dynamic_registry("add_process_set")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.mpi_comm is not None:
        raise NotImplementedError(
            "add_process_set: a process set of an mpi4py communicator can be given to init only; "
            "list its ranks"
        )
    registry.add(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set and give its memory back; blocks until every rank has called it alike.

    Returns:
        False for the global set and for sets that are not registered, else True; the object is not
        registered any more.

    Raises:
        ValueError: Horovod is not initialized or not in dynamic mode, or this is no process set;
            some rank has pending operations on the set, which is raised on all ranks.
        MismatchError: ranks want different changes.
    """
    registry = _dynamic_registry("remove_process_set")
    check_process_set(process_set)
    return registry.remove(process_set)


def check_process_set(process_set: object) -> None:
    """Refuse an object that is no process set.

    Raises:
        ValueError: it is, for example, a list of ranks.
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set must be a ProcessSet, found {reprlib.repr(process_set)}")


def has_others(process_set: ProcessSet) -> bool:
    """Whether this process is a member of a set, with others. ``ValueError`` before ``init``."""
    return bool(process_set.included()) and (process_set.size() or 1) > 1


def number_of(process_set: object) -> int:
    """The number of a registered set, under which the engine knows it.

    Before ``init`` only the global set has one: graphs are sometimes built before.

    Raises:
        ValueError: this is no process set, or it is not registered in this world.
    """
    check_process_set(process_set)
    assert isinstance(process_set, ProcessSet)
    number = process_set.process_set_id
    if number is None:
        raise ValueError(
            f"{process_set} is not registered; give it to init or add_process_set on all ranks"
        )
    if number != 0:
        current_registry().members(number)
    return number


def ids_and_ranks() -> dict[int, list[int]]:
    """All registered sets: ranks by id."""
    return current_registry().ids_and_ranks()


def open_registry(
    engine: _native.Engine,
    key: bytes,
    rank: int,
    size: int,
    process_sets: Sequence[ProcessSet],
    is_dynamic: bool,
    connect_set: ConnectSet | None = None,
    data_plane: DataPlane | None = None,
    comm: Any = None,
) -> None:
    """Begin a world's process sets: the global one and these; blocks until all ranks agree.

    ``key`` is the world's, for the codes of objects. ``connect_set`` connects the members of a set,
    where the world is on several hosts.

    Raises:
        InitError: a set cannot be, or ranks were given different sets; on all ranks alike.
        AlteredObjectError: what a rank has sent was altered; the world is over.
    """
    registry = Registry(engine, key, rank, size, is_dynamic, connect_set, data_plane, comm)
    try:
        registry.register_at_start(process_sets)
    except BaseException:
        registry.close()
        raise
    replace_registry(registry)


def close_registry() -> None:
    """End of the world: no set is registered any more."""
    registry = replace_registry(None)
    if registry is not None:
        registry.close()


def _dynamic_registry(operation: str) -> Registry:
    registry = current_registry()
    if not registry.is_dynamic:
        raise ValueError(
            f"{operation} needs dynamic process sets: call hvd.init(process_sets='dynamic') or set "
            f"{_DYNAMIC}=1 on all ranks"
        )
    return registry
