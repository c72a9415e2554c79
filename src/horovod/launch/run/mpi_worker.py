"""The worker of ``horovod.run`` under ``mpirun``; the caller's store has call and answer."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import NoReturn

from horovod.core.base import mpi_library
from horovod.launch.calls.call import memory_file
from horovod.launch.calls.worker import run_call
from horovod.launch.run.mpi_function import LENGTH, STORE_TIMEOUT_S, call_values
from horovod.rendezvous.identity.mpi import broadcast
from horovod.rendezvous.store.address_search import find_store
from horovod.rendezvous.store.client import Store, StoreClient
from horovod.rendezvous.store.hosted import HostedStore
from horovod.rendezvous.store.proven_values import UnprovenError


def main() -> NoReturn:
    """Run the call of this job; exits with 0 only if the result is in the store."""
    comm = mpi_library.load().COMM_WORLD.Dup()
    rank = comm.Get_rank()
    content, stdin = b"", sys.stdin.buffer
    if rank == 0:
        content = stdin.read(*LENGTH.unpack(stdin.read(LENGTH.size)))
    hosted = HostedStore.from_bytes(broadcast(comm, content))
    comm.Free()
    with memory_file() as call, memory_file() as answer:
        with closing(_connect(hosted)) as store:
            call.write(_call_in(store, hosted.secret))
        call.flush()
        try:
            run_call(call.fileno(), answer.fileno())
        except SystemExit:
            content = os.pread(answer.fileno(), os.fstat(answer.fileno()).st_size, 0)
            with closing(_connect(hosted)) as store:
                call_values(store, hosted.secret).put(f"answer/{rank}", content)
            raise


def _call_in(store: Store, secret: bytes) -> bytes:
    try:
        found = call_values(store, secret).take("call", 0.0)
    except UnprovenError:
        sys.exit(
            "horovod: the call has no proof of the job's secret, so it was altered on the way; it "
            "was not unpickled"
        )
    if found is None:
        sys.exit("horovod: there is no call in the store of the process that has called")
    return found


def _connect(hosted: HostedStore) -> StoreClient:
    return find_store(hosted.addresses, hosted.secret, STORE_TIMEOUT_S)
