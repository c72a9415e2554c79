"""Who this process is where MPI says it, and what its processes need to meet.

MPI has connected them before they know each other otherwise, so the job's secret and the address of
the store, which rank 0 serves, are broadcast over it. Everything here is done on communicators of
our own, in a thread, since MPI's waits have no end and ``init`` has one.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from horovod.core.base import mpi_library
from horovod.core.base.checked import BadMessageError
from horovod.errors import InitError
from horovod.rendezvous.identity.environment import Identity

if TYPE_CHECKING:
    from horovod.rendezvous.store.hosted import HostedStore

__all__ = ["broadcast", "host_store", "identify_by_mpi", "is_started_by_mpi"]

# Open MPI and its relatives; MPICH, Intel MPI and theirs; IBM's jsrun.
_MOST_BYTES = 2**20  # of what rank 0 tells the others

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE")

_Ranks = tuple[int, ...]  # of MPI.COMM_WORLD


class _MpiBootstrap:
    """Processes that come together in a thread; who gave up may come back to it."""

    def __init__(self, meet: Callable[[], Identity]) -> None:
        self._meet = meet
        self._identity: Identity | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="horovod-mpi", daemon=True)
        self._thread.start()

    def identity(self, timeout_s: float) -> Identity | None:
        """How it ended; None if it did not within ``timeout_s``."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise InitError(f"init: MPI failed: {self._error}") from self._error
        return self._identity

    def _run(self) -> None:
        try:
            self._identity = self._meet()
        except Exception as error:
            self._error = error


_meetings: dict[_Ranks, _MpiBootstrap] = {}  # not complete when their time was over
_comms: dict[_Ranks, Any] = {}  # ours, by the processes that they connect


def is_started_by_mpi(environ: Mapping[str, str]) -> bool:
    """Whether ``mpirun`` or ``mpiexec`` started this process; one alone can do without MPI."""
    sizes = [environ[name] for name in _SIZES if name in environ]
    return any(size != "1" for size in sizes) or (bool(sizes) and mpi_library.is_built())


def identify_by_mpi(
    environ: Mapping[str, str],
    timeout_s: float,
    comm: Sequence[int] | Any | None = None,
    *,
    needs_threads: bool = True,
) -> Identity:
    """The identity of this process among those of ``comm``; blocks until all of them ask.

    Args:
        comm: None for all processes, their numbers in ``MPI.COMM_WORLD``, or a communicator.

    Raises:
        InitError: mpi4py is missing or another MPI than mpirun's, or not all came in time.
        ValueError: ``comm`` has no meaning here.
    """
    mpi = mpi_library.load(needs_threads=needs_threads)
    _check_library(mpi, environ)
    ranks = _ranks_of(mpi, comm)
    hostname = environ.get("HOROVOD_HOSTNAME") or os.uname().nodename
    meeting = _meetings.pop(ranks, None) or _MpiBootstrap(lambda: _meet(mpi, ranks, comm, hostname))
    identity = meeting.identity(timeout_s)
    if identity is None:
        _meetings[ranks] = meeting
        raise InitError(
            f"init: not all of the {len(ranks)} processes came within {timeout_s:g} s "
            "(HOROVOD_START_TIMEOUT)"
        )
    return identity


def _check_library(mpi: Any, environ: Mapping[str, str]) -> None:
    size = str(mpi.COMM_WORLD.Get_size())
    for name in (*_SIZES, "SLURM_STEP_NUM_TASKS"):
        expected = environ.get(name, size)
        if expected == size:
            continue
        library = mpi.Get_library_version().partition("\n")[0].partition(",")[0].strip()
        raise InitError(
            f"init: {expected} processes were started ({name}), but MPI knows {size}: mpi4py uses "
            f"{library}, which does not belong to what started them"
        )


def _ranks_of(mpi: Any, comm: Sequence[int] | Any | None) -> _Ranks:
    everybody = mpi.COMM_WORLD
    if mpi_library.is_communicator(comm):
        return tuple(mpi_library.ranks_within(comm, everybody))
    if comm is None:
        return tuple(range(everybody.Get_size()))
    # Checks them, too.
    size, rank = everybody.Get_size(), everybody.Get_rank()
    Identity(rank, size, rank, size, 0, 1, "", "mpirun").restricted_to(comm)
    return tuple(comm)


def _meet(mpi: Any, ranks: _Ranks, comm: Any, hostname: str) -> Identity:
    own = _comms.get(ranks)
    if own is None:
        own = _comms[ranks] = _connect(mpi, ranks, comm)
    rank, size = own.Get_rank(), own.Get_size()
    host = own.Split_type(mpi.COMM_TYPE_SHARED, rank)
    local_rank, local_size = host.Get_rank(), host.Get_size()
    leader = array("i", [rank])
    host.Bcast(leader, 0)
    host.Free()
    places = array("i", [0] * (2 * size))
    own.Allgather(array("i", [leader[0], local_rank]), places)
    _check_places(places, size)
    # The hosts that have this local rank, each by the world rank of its first process.
    column = sorted(places[2 * r] for r in range(size) if places[2 * r + 1] == local_rank)
    cross_rank, cross_size = column.index(leader[0]), len(column)
    scope = "" if ranks == tuple(range(mpi.COMM_WORLD.Get_size())) else "-".join(map(str, ranks))
    return Identity(
        *(rank, size, local_rank, local_size, cross_rank, cross_size, hostname, "mpirun"),
        scope=scope and f"{scope}/",
        comm=own,
    )


def _check_places(places: Sequence[int], size: int) -> None:
    """Of each rank the first one of its host, and its number there."""
    for rank in range(size):
        leader, local_rank = places[2 * rank : 2 * rank + 2]
        if not (0 <= leader <= rank and 0 <= local_rank <= rank - leader):
            found = f"leader {leader}, local rank {local_rank}"
            raise BadMessageError("place", "leader", found, "ranks before it", f"rank {rank}")


def _connect(mpi: Any, ranks: _Ranks, comm: Any) -> Any:
    everybody = mpi.COMM_WORLD
    if mpi_library.is_communicator(comm):
        return comm.Dup()
    if len(ranks) == everybody.Get_size():
        return everybody.Split(0, ranks.index(everybody.Get_rank()))
    return everybody.Create_group(everybody.Get_group().Incl(ranks))


def host_store(identity: Identity, interfaces: Sequence[str] = ()) -> HostedStore:
    """Start the job's store on rank 0 and tell all ranks, which are here already, where it is."""
    from horovod.rendezvous.store.hosted import HostedStore, start_store

    own = None
    if identity.rank == 0:
        own = start_store(identity.local_size < identity.size, interfaces)
    told = broadcast(identity.comm, b"" if own is None else own.to_bytes())
    return own or HostedStore.from_bytes(told)


def broadcast(comm: Any, message: bytes) -> bytes:
    """What rank 0 of ``comm`` says; blocks until all its processes are here."""
    length = array("i", [len(message)])
    comm.Bcast(length, 0)
    if not 0 <= length[0] <= _MOST_BYTES:
        found = f"{length[0]} bytes"
        raise BadMessageError("broadcast", "length", found, f"at most {_MOST_BYTES}", "rank 0")
    data = bytearray(message or length[0])
    comm.Bcast(data, 0)
    return bytes(data)
