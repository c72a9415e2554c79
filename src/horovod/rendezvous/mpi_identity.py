"""Who this process is where ``mpirun`` started it, and what its processes need to meet.

MPI says the number of each process and connects them before they know each other otherwise, so the
job's secret and the address of the store, which rank 0 serves, are broadcast over it. Everything
here is done on a communicator of our own.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from horovod import mpi_library
from horovod.errors import InitError
from horovod.rendezvous.authentication import SECRET_BYTES
from horovod.rendezvous.identity import Identity
from horovod.rendezvous.membership import Deadline
from horovod.rendezvous.store_server import StoreServer

__all__ = ["HostedStore", "host_store", "identify_by_mpi", "is_started_by_mpi", "restrict"]

# Open MPI and its relatives; MPICH, Intel MPI and their relatives.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_PAUSE_S = 0.001

_own_comm: Any = None  # duplicate of MPI.COMM_WORLD, once all processes came to make it
_duplication: tuple[Any, Any] | None = None  # the one under way, and its request
_arrival: Any = None  # a barrier that not all have come to yet


def is_started_by_mpi(environ: Mapping[str, str]) -> bool:
    """Whether ``mpirun`` or ``mpiexec`` started this process as one of several."""
    return any(environ.get(name, "1") != "1" for name in _SIZES)


def identify_by_mpi(
    environ: Mapping[str, str], timeout_s: float, *, needs_threads: bool = True
) -> Identity:
    """The identity of this process in ``MPI.COMM_WORLD``; blocks until all processes ask for it.

    Raises:
        InitError: mpi4py is missing or another MPI than mpirun's, or not all came in time.
    """
    mpi = mpi_library.load(needs_threads=needs_threads)
    expected = next(int(environ[name]) for name in _SIZES if environ.get(name, "1") != "1")
    size = mpi.COMM_WORLD.Get_size()
    if size != expected:
        library = mpi.Get_library_version().partition(",")[0].strip()
        raise InitError(
            f"init: mpirun started {expected} processes, but MPI knows {size}: mpi4py uses "
            f"{library}, which is not the library that this mpirun belongs to"
        )
    comm = _gather_all(mpi, Deadline(timeout_s))
    return _identity(mpi, comm, environ.get("HOROVOD_HOSTNAME") or os.uname().nodename)


def restrict(identity: Identity, ranks: list[int]) -> Identity:
    """``identity.restricted_to(ranks)`` with a communicator of these ranks."""
    restricted = identity.restricted_to(ranks)
    group = identity.comm.Get_group().Incl(ranks)
    return replace(restricted, comm=identity.comm.Create_group(group))


def _gather_all(mpi: Any, deadline: Deadline) -> Any:
    """Our duplicate of all processes' communicator, when all of them are here."""
    global _own_comm, _duplication, _arrival
    if _own_comm is None:
        if _duplication is None:
            _duplication = mpi.COMM_WORLD.Idup()
        comm, request = _duplication
        _await(request, deadline, comm)
        _own_comm, _duplication = comm, None
        return _own_comm
    if _arrival is None:
        _arrival = _own_comm.Ibarrier()
    _await(_arrival, deadline, _own_comm)
    _arrival = None
    return _own_comm


def _await(request: Any, deadline: Deadline, comm: Any) -> None:
    while not request.Test():
        if deadline.remaining_s() == 0:
            raise InitError(
                "init: not all processes that mpirun started came to init within "
                f"{deadline.timeout_s:g} s (HOROVOD_START_TIMEOUT)"
            )
        time.sleep(_PAUSE_S)


def _identity(mpi: Any, comm: Any, hostname: str) -> Identity:
    rank, size = comm.Get_rank(), comm.Get_size()
    host = comm.Split_type(mpi.COMM_TYPE_SHARED, rank)
    local_rank, local_size = host.Get_rank(), host.Get_size()
    leader = array("i", [rank])
    host.Bcast(leader, 0)
    host.Free()
    places = array("i", [0] * (2 * size))
    comm.Allgather(array("i", [leader[0], local_rank]), places)
    # The hosts that have this local rank, each by the world rank of its first process.
    column = sorted(places[2 * r] for r in range(size) if places[2 * r + 1] == local_rank)
    return Identity(
        rank,
        size,
        local_rank,
        local_size,
        column.index(leader[0]),
        len(column),
        hostname,
        "mpirun",
        comm=comm,
    )


@dataclass(frozen=True)
class HostedStore:
    """The store of a job without a launcher of ours; ``server`` is there on rank 0 only."""

    address: tuple[str, int]
    secret: bytes
    server: StoreServer | None


def host_store(identity: Identity) -> HostedStore:
    """Start the store on rank 0 and tell all ranks, which are here already, where it is."""
    server = None
    message = b""
    if identity.rank == 0:
        secret = os.urandom(SECRET_BYTES)
        server = StoreServer(secret)
        server.start()
        host, port = server.address
        message = secret + f"{host}:{port}".encode()
    told = _broadcast(identity.comm, message)
    host, _, port_text = told[SECRET_BYTES:].decode().rpartition(":")
    return HostedStore((host, int(port_text)), told[:SECRET_BYTES], server)


def _broadcast(comm: Any, message: bytes) -> bytes:
    length = array("i", [len(message)])
    comm.Bcast(length, 0)
    data = bytearray(message or length[0])
    comm.Bcast(data, 0)
    return bytes(data)
