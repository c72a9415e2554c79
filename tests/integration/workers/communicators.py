"""Worlds and process sets of mpi4py communicators, while the program itself uses MPI.

Run by mpirun on at least three processes; prints ``all right`` on each.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

import horovod.numpy as hvd
from horovod.core import world
from horovod.core.process_sets import ids_and_ranks

WORLD = MPI.COMM_WORLD
OWN = np.array([WORLD.rank + 1.0], np.float32)


def total(ranks: list[int]) -> float:
    return float(sum(rank + 1 for rank in ranks))


def check_numbers() -> None:
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (WORLD.rank, WORLD.size)
    assert world.data_plane_name() == "mpi"
    assert world.mpi_enabled()
    assert not world.gloo_enabled()
    assert world.mpi_threads_supported() is (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    hvd.shutdown()


def check_split() -> None:
    """Each process gives its own half, with the ranks in reverse order."""
    half = WORLD.Split(WORLD.rank % 2, key=-WORLD.rank)
    evens, odds = list(range(0, WORLD.size, 2)), list(range(1, WORLD.size, 2))
    own, ends = hvd.ProcessSet(half), hvd.ProcessSet([0, WORLD.size - 1])
    assert own.ranks is None
    hvd.init(comm=WORLD, process_sets=[own, ends])
    assert ids_and_ranks() == {0: list(range(WORLD.size)), 1: evens, 2: odds, 3: ends.ranks}
    assert own.ranks == (odds if WORLD.rank % 2 else evens)
    assert hvd.global_process_set.mpi_comm is WORLD
    # The program uses MPI during a collective of Horovod.
    handle = hvd.allreduce_async(OWN, op=hvd.Sum, process_set=own)
    assert WORLD.allreduce(WORLD.rank) == sum(range(WORLD.size))
    assert hvd.synchronize(handle) == total(own.ranks)
    gathered = hvd.allgather(np.array([hvd.rank()]), process_set=own)
    assert gathered.tolist() == own.ranks
    hvd.shutdown()
    assert own.process_set_id is None


def check_part() -> None:
    """Some of the processes form a world, given by a communicator and by their numbers."""
    part = list(range(1, WORLD.size))
    if WORLD.rank in part:
        for comm in (WORLD.Create_group(WORLD.group.Incl(part)), part):
            hvd.init(comm=comm)
            assert (hvd.rank(), hvd.size()) == (WORLD.rank - 1, len(part))
            assert hvd.allreduce(OWN, op=hvd.Sum) == total(part)
            hvd.shutdown()
    WORLD.Barrier()


def check_refusals() -> None:
    half = WORLD.Split(WORLD.rank % 2)
    for comm in ([WORLD, half], "all", [0.5]):
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
