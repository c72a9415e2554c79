"""The worker of ``horovod.run`` under ``mpirun``: call and answer go through the caller's store."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import NoReturn

from horovod import mpi_library
from horovod.launch.call import memory_file
from horovod.launch.function_worker import run_call
from horovod.launch.mpi_function import LENGTH, STORE_TIMEOUT_S, put, take
from horovod.rendezvous.hosting import HostedStore
from horovod.rendezvous.mpi_identity import broadcast
from horovod.rendezvous.reach import find_store
from horovod.rendezvous.store import StoreClient

__all__ = ["main"]


def main() -> NoReturn:
    """Run the call of this job; exits with 0 only if the result was delivered."""
    comm = mpi_library.load().COMM_WORLD.Dup()
    rank = comm.Get_rank()
    hosted = HostedStore.decoded(broadcast(comm, _read_greeting() if rank == 0 else b""))
    comm.Free()
    with memory_file() as call, memory_file() as answer:
        with closing(_connect(hosted)) as store:
            call.write(take(store, "call"))
        call.flush()
        try:
            run_call(call.fileno(), answer.fileno())
        except SystemExit:
            content = os.pread(answer.fileno(), os.fstat(answer.fileno()).st_size, 0)
            with closing(_connect(hosted)) as store:
                put(store, f"answer/{rank}", content)
            raise


def _read_greeting() -> bytes:
    (length,) = LENGTH.unpack(sys.stdin.buffer.read(LENGTH.size))
    return sys.stdin.buffer.read(length)


def _connect(hosted: HostedStore) -> StoreClient:
    return find_store(hosted.addresses, hosted.secret, STORE_TIMEOUT_S)
