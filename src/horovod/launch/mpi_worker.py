"""The worker of ``horovod.run`` under ``mpirun``: a call over MPI, an answer into the store."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from horovod import mpi_library
from horovod.launch.call import memory_file
from horovod.launch.function_worker import run_call
from horovod.launch.mpi_function import LENGTH, PART_BYTES
from horovod.rendezvous.hosting import HostedStore
from horovod.rendezvous.mpi_identity import broadcast
from horovod.rendezvous.reach import find_store

__all__ = ["main"]

_STORE_TIMEOUT_S = 30.0


def main() -> NoReturn:
    """Run the call of this job; exits with 0 only if the result was delivered."""
    mpi = mpi_library.load()
    comm = mpi.COMM_WORLD.Dup()
    rank = comm.Get_rank()
    payload = broadcast(comm, _read_payload() if rank == 0 else b"")
    comm.Free()
    line, _, content = payload.partition(b"\n")
    hosted = HostedStore.decoded(line)
    with memory_file() as call, memory_file() as answer:
        call.write(content)
        call.flush()
        try:
            run_call(call.fileno(), answer.fileno())
        except SystemExit:
            _deliver(hosted, rank, os.pread(answer.fileno(), os.fstat(answer.fileno()).st_size, 0))
            raise


def _read_payload() -> bytes:
    (length,) = LENGTH.unpack(sys.stdin.buffer.read(LENGTH.size))
    return sys.stdin.buffer.read(length)


def _deliver(hosted: HostedStore, rank: int, answer: bytes) -> None:
    store = find_store(hosted.addresses, hosted.secret, _STORE_TIMEOUT_S)
    parts = [answer[at : at + PART_BYTES] for at in range(0, len(answer), PART_BYTES)]
    for number, part in enumerate(parts):
        store.set(f"answer/{rank}/{number}", part)
    store.set(f"answer/{rank}/parts", str(len(parts)).encode())
    store.close()
