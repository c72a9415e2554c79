"""The position of this process where MPI says it, and how the ranks of an MPI job find the store.

MPI has connected the processes already. So rank 0, which serves the store, broadcasts its address
and the job's secret over MPI. Everything here uses communicators of our own. It runs in a thread,
since MPI's waits have no end and ``init`` has one.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from horovod.core.base import mpi_library
from horovod.core.base.checked import BadMessageError
from horovod.core.base.rank_info import cross_numbers
from horovod.errors import InitError
from horovod.rendezvous.identity.environment import ProcessInfo

if TYPE_CHECKING:
    from horovod.rendezvous.store.hosted import HostedStore

_MOST_BYTES = 2**20  # of what rank 0 tells the others
# Open MPI and its relatives; MPICH, Intel MPI and theirs; IBM's jsrun.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE")

_Ranks = tuple[int, ...]  # of MPI.COMM_WORLD


class _MpiBootstrap:
    """Bootstrap in a thread. After a timeout the next ``init`` waits for the same thread."""

    def __init__(self, connect: Callable[[], ProcessInfo]) -> None:
        self._connect = connect
        self._identity: ProcessInfo | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="horovod-mpi", daemon=True)
        self._thread.start()

    def identity(self, timeout_s: float) -> ProcessInfo | None:
        """The result; None if there is none within ``timeout_s``."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise InitError(f"init: MPI failed: {self._error}") from self._error
        return self._identity

    def _run(self) -> None:
        try:
            self._identity = self._connect()
        except Exception as error:
            self._error = error


_bootstraps: dict[_Ranks, _MpiBootstrap] = {}  # those that timed out
_comms: dict[_Ranks, Any] = {}  # ours, by the processes that they connect


def is_started_by_mpi(environ: Mapping[str, str]) -> bool:
    """Whether ``mpirun`` or ``mpiexec`` started this process. A single process needs no MPI."""
    sizes = [environ[name] for name in _SIZES if name in environ]
    return any(size != "1" for size in sizes) or (bool(sizes) and mpi_library.is_built())


def identify_by_mpi(
    environ: Mapping[str, str], timeout_s: float, comm: Sequence[int] | Any, *, needs_threads: bool
) -> ProcessInfo:
    """The position of this process among those of ``comm``; blocks until all of them ask.

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
    bootstrap = _bootstraps.pop(ranks, None)
    bootstrap = bootstrap or _MpiBootstrap(lambda: _bootstrap(mpi, ranks, comm, hostname))
    identity = bootstrap.identity(timeout_s)
    if identity is None:
        _bootstraps[ranks] = bootstrap
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


def _ranks_of(mpi: Any, comm: Sequence[int] | Any) -> _Ranks:
    world = mpi.COMM_WORLD
    if mpi_library.is_communicator(comm):
        return tuple(mpi_library.ranks_within(comm, world))
    if comm is None:
        return tuple(range(world.Get_size()))
    # ``restricted_to`` checks the ranks.
    size, rank = world.Get_size(), world.Get_rank()
    ProcessInfo(rank, size).restricted_to(comm)
    return tuple(comm)


def _bootstrap(mpi: Any, ranks: _Ranks, comm: Any, hostname: str) -> ProcessInfo:
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
    _check_positions(places, size)
    # A host is known by the world rank of its first process.
    cross = cross_numbers(leader[0], local_rank, Counter(places[::2]))
    scope = "" if ranks == tuple(range(mpi.COMM_WORLD.Get_size())) else "-".join(map(str, ranks))
    return ProcessInfo(
        *(rank, size, local_rank, local_size, *cross, hostname, "mpirun"),
        scope=scope and f"{scope}/",
        comm=own,
    )


def _check_positions(places: Sequence[int], size: int) -> None:
    """Check the first rank of each rank's host, and its number there."""
    for rank in range(size):
        leader, local_rank = places[2 * rank : 2 * rank + 2]
        if not (0 <= leader <= rank and 0 <= local_rank <= rank - leader):
            found = f"leader {leader}, local rank {local_rank}"
            raise BadMessageError("place", "leader", found, "ranks before it", f"rank {rank}")


def _connect(mpi: Any, ranks: _Ranks, comm: Any) -> Any:
    world = mpi.COMM_WORLD
    if mpi_library.is_communicator(comm):
        return comm.Dup()
    if len(ranks) == world.Get_size():
        return world.Split(0, ranks.index(world.Get_rank()))
    return world.Create_group(world.Get_group().Incl(ranks))


def host_store(identity: ProcessInfo, interfaces: Sequence[str] = ()) -> HostedStore:
    """Start the job's store on rank 0 and broadcast its address."""
    from horovod.rendezvous.store.hosted import HostedStore, start_store

    own = None
    if identity.rank == 0:
        own = start_store(identity.local_size < identity.size, interfaces)
    told = broadcast(identity.comm, b"" if own is None else own.to_bytes())
    return own or HostedStore.from_bytes(told)


def broadcast(comm: Any, message: bytes) -> bytes:
    """The message of rank 0 of ``comm``; blocks until all its processes have called."""
    length = array("i", [len(message)])
    comm.Bcast(length, 0)
    if not 0 <= length[0] <= _MOST_BYTES:
        found = f"{length[0]} bytes"
        raise BadMessageError("broadcast", "length", found, f"at most {_MOST_BYTES}", "rank 0")
    data = bytearray(message or length[0])
    comm.Bcast(data, 0)
    return bytes(data)
