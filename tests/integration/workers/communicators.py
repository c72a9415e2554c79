"""Worlds and process sets of mpi4py communicators, beside the program's own use of MPI.

Run by mpirun on at least three processes; prints ``all right`` on each.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

import horovod.numpy as hvd
from horovod.core import world
from horovod.core.process_sets import ids_and_ranks

EVERYBODY = MPI.COMM_WORLD
OWN = np.array([EVERYBODY.rank + 1.0], np.float32)


def total(ranks: list[int]) -> float:
    return float(sum(rank + 1 for rank in ranks))


def check_numbers() -> None:
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (EVERYBODY.rank, EVERYBODY.size)
    assert world.data_plane_name() == "mpi"
    assert world.mpi_enabled()
    assert not world.gloo_enabled()
    assert world.mpi_threads_supported() is (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    hvd.shutdown()


def check_split() -> None:
    """Each process gives the half that it is in, with its ranks in the contrary order."""
    half = EVERYBODY.Split(EVERYBODY.rank % 2, key=-EVERYBODY.rank)
    evens, odds = list(range(0, EVERYBODY.size, 2)), list(range(1, EVERYBODY.size, 2))
    own, ends = hvd.ProcessSet(half), hvd.ProcessSet([0, EVERYBODY.size - 1])
    assert own.ranks is None
    hvd.init(comm=EVERYBODY, process_sets=[own, ends])
    assert ids_and_ranks() == {0: list(range(EVERYBODY.size)), 1: evens, 2: odds, 3: ends.ranks}
    assert own.ranks == (odds if EVERYBODY.rank % 2 else evens)
    assert hvd.global_process_set.mpi_comm is EVERYBODY
    # In the middle of a collective of ours the program uses MPI, too.
    handle = hvd.allreduce_async(OWN, op=hvd.Sum, process_set=own)
    assert EVERYBODY.allreduce(EVERYBODY.rank) == sum(range(EVERYBODY.size))
    assert hvd.synchronize(handle) == total(own.ranks)
    gathered = hvd.allgather(np.array([hvd.rank()]), process_set=own)
    assert gathered.tolist() == own.ranks
    hvd.shutdown()
    assert own.process_set_id is None


def check_part() -> None:
    """Some of the processes are a world, by a communicator and by their numbers."""
    part = list(range(1, EVERYBODY.size))
    if EVERYBODY.rank in part:
        for comm in (EVERYBODY.Create_group(EVERYBODY.group.Incl(part)), part):
            hvd.init(comm=comm)
            assert (hvd.rank(), hvd.size()) == (EVERYBODY.rank - 1, len(part))
            assert hvd.allreduce(OWN, op=hvd.Sum) == total(part)
            hvd.shutdown()
    EVERYBODY.Barrier()


def check_refusals() -> None:
    half = EVERYBODY.Split(EVERYBODY.rank % 2)
    for comm in ([EVERYBODY, half], "all", [0.5]):
        try:
            hvd.init(comm=comm)
        except ValueError:
            continue
        raise AssertionError(comm)
    try:
        hvd.init(process_sets=[hvd.ProcessSet(half)])
    except NotImplementedError:
        return
    raise AssertionError("process sets of communicators without a communicator")


if __name__ == "__main__":
    check_numbers()
    check_split()
    check_part()
    check_refusals()
    print("all right", flush=True)
