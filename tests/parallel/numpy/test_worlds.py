"""Worlds of some of the ranks, beside each other and one after the other; what rounds leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import sets

import horovod.numpy as hvd
from horovod.errors import InitError

RANK, SIZE = int(os.environ.get("HOROVOD_RANK", "0")), int(os.environ.get("HOROVOD_SIZE", "1"))


@pytest.fixture(autouse=True)
def one_world_afterwards() -> Iterator[None]:
    if SIZE == 1:
        pytest.skip("one rank has no other worlds")
    yield
    hvd.shutdown()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (RANK, SIZE)
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="afterwards")[0] == SIZE


def check_world(ranks: list[int]) -> None:
    """This world consists of these processes, in this order."""
    assert (hvd.rank(), hvd.size()) == (ranks.index(RANK), len(ranks))
    if os.environ.get("HOROVOD_LOCAL_SIZE", "1") == str(SIZE):
        assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert hvd.global_process_set.ranks == list(range(len(ranks)))
    assert hvd.allgather(np.array([RANK]), "who").tolist() == ranks
    total = hvd.allreduce(np.full(50_000, RANK), op=hvd.Sum, name="sum")
    assert set(total) == {sum(ranks)}
    root = len(ranks) - 1
    assert hvd.broadcast(np.array([RANK]), root).tolist() == [ranks[root]]


@pytest.mark.parametrize("left_out", ["first", "last"])
def test_a_world_of_some(left_out):
    ranks = list(range(1, SIZE)) if left_out == "first" else list(range(SIZE - 1))
    hvd.shutdown()
    for _ in range(3):
        if RANK in ranks:
            hvd.init(comm=ranks)
            check_world(ranks)
            hvd.shutdown()
        else:
            with pytest.raises(InitError, match="does not contain this process"):
                hvd.init(comm=ranks)
            assert not hvd.is_initialized()


def test_the_order_of_the_list_counts():
    ranks = list(reversed(range(SIZE)))
    hvd.shutdown()
    hvd.init(comm=ranks)
    check_world(ranks)


def test_worlds_beside_each_other():
    """Even and odd ranks are worlds of their own at the same time, with sets of their own."""
    ranks = list(range(RANK % 2, SIZE, 2))
    hvd.shutdown()
    for _ in range(5):
        hvd.init(comm=ranks, process_sets="dynamic")
        check_world(ranks)
        with sets.registered(sets.overlapping(len(ranks))) as entries:
            for entry in entries:
                if entry.included():
                    result = hvd.allreduce(np.ones(3), op=hvd.Sum, process_set=entry)
                    assert result.tolist() == [entry.size()] * 3
        hvd.shutdown()
    hvd.init()
    check_world(list(range(SIZE)))


def test_every_rank_alone():
    hvd.shutdown()
    hvd.init(comm=[RANK])
    check_world([RANK])


@pytest.mark.parametrize("ranks", [[0, 0], [SIZE], [-1, 0]])
def test_lists_that_cannot_be(ranks):
    hvd.shutdown()
    with pytest.raises(InitError, match="expected different ranks"):
        hvd.init(comm=ranks)


@pytest.mark.parametrize("comm", ["0,1", 3, [0.5]])
def test_communicators_of_another_type(comm):
    hvd.shutdown()
    with pytest.raises(ValueError, match="Invalid type of argument comm"):
        hvd.init(comm=comm)


def footprint() -> tuple[int, int, int]:
    """Open descriptors, threads, resident MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident


def test_a_hundred_worlds_with_process_sets_leave_nothing_behind():
    pending: list[int] = []

    def one_world() -> tuple[int, int, int]:
        hvd.shutdown()
        for handle in pending:
            with pytest.raises(hvd.HorovodInternalError, match="shut down"):
                hvd.synchronize(handle)
        pending.clear()
        given = [hvd.ProcessSet(ranks) for ranks in sets.overlapping(SIZE)]
        hvd.init(process_sets=given)
        for entry in (hvd.global_process_set, *given):
            if entry.included():
                result = hvd.allreduce(np.ones(100_000), op=hvd.Sum, process_set=entry)
                assert result[-1] == entry.size()
        # While nobody can have left: a rank that ends its world closes connections of the others.
        hvd.barrier()
        counted = footprint()
        hvd.barrier()
        # What is in flight when the world ends is given up; another rank may have ended it already.
        with suppress(hvd.HorovodInternalError):
            pending.append(hvd.allreduce_async(np.ones(10), name=f"never {RANK}"))
        return counted

    for _ in range(3):
        descriptors, threads, resident = one_world()
    for _ in range(100):
        after = one_world()
    assert after[:2] == (descriptors, threads)
    assert after[2] - resident < 24
