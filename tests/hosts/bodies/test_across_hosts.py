"""What is special about a world of several hosts."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from arithmetic import values

import horovod.numpy as hvd


def sum_by_hosts(hosts: list[list[int]], inputs: list[np.ndarray]) -> np.ndarray:
    """The ranks of a host in order, then the hosts in order."""
    partial = []
    for ranks in hosts:
        total = inputs[ranks[0]].copy()
        for rank in ranks[1:]:
            total += inputs[rank]
        partial.append(total)
    total = partial[0].copy()
    for other in partial[1:]:
        total += other
    return total


def fine_values(shape: tuple[int, ...], rank: int) -> np.ndarray:
    """Sums of these depend on their order."""
    return np.random.default_rng([rank, *shape]).uniform(-2, 2, shape).astype(np.float32)


def test_numbers_of_the_world(hosts):
    (mine,) = [ranks for ranks in hosts if hvd.rank() in ranks]
    local_rank = mine.index(hvd.rank())
    assert (hvd.local_rank(), hvd.local_size()) == (local_rank, len(mine))
    same = [ranks for ranks in hosts if len(ranks) > local_rank]
    assert (hvd.cross_rank(), hvd.cross_size()) == (same.index(mine), len(same))
    assert hvd.is_homogeneous() == (len({len(ranks) for ranks in hosts}) == 1)


@pytest.mark.parametrize("count", [1, 7, 1000, 65_536, 200_003, 3_000_001])
def test_the_order_of_summation_depends_on_the_hosts_alone(hosts, count):
    inputs = [fine_values((count,), rank) for rank in range(hvd.size())]
    expected = sum_by_hosts(hosts, inputs)
    for elements_before in (0, 1, 5000):  # another offset in the bucket
        before = hvd.allreduce_async(np.ones(elements_before, np.float32), op=hvd.Sum)
        handle = hvd.allreduce_async(inputs[hvd.rank()], op=hvd.Sum)
        np.testing.assert_array_equal(hvd.synchronize(handle), expected)
        assert np.all(hvd.synchronize(before) == hvd.size())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_results_are_bitwise_equal_on_all_ranks(dtype):
    array = fine_values((100_001,), hvd.rank()).astype(dtype)
    sums = [hvd.allreduce(array, op=op) for op in (hvd.Sum, hvd.Average, hvd.Adasum, hvd.Product)]
    checksums = [zlib.crc32(result.tobytes()) for result in sums]
    assert hvd.allgather_object(checksums, name="checksums") == [checksums] * hvd.size()


def test_a_thousand_small_tensors():
    for _ in range(2):  # the second time all names are known
        arrays = [np.full(1024, float(index % 100), np.float32) for index in range(1000)]
        handles = [
            hvd.allreduce_async_(array, name=f"small {index}", op=hvd.Sum)
            for index, array in enumerate(arrays)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        for index, array in enumerate(arrays):
            assert np.all(array == hvd.size() * (index % 100))


def test_no_elements():
    empty = np.zeros((0, 3), np.float32)
    assert hvd.allreduce(empty, name="empty").shape == (0, 3)
    assert hvd.allgather(empty, name="empty").shape == (0, 3)
    assert hvd.broadcast(empty, 0, name="empty").shape == (0, 3)
    assert hvd.reducescatter(empty, name="empty", op=hvd.Sum).shape == (0, 3)
    result, splits = hvd.alltoall(empty, np.zeros(hvd.size(), np.int32), name="empty")
    assert result.shape == (0, 3)
    assert list(splits) == [0] * hvd.size()
    uneven = values(np.float32, (hvd.rank(), 2), hvd.rank())  # rank 0 has none
    assert len(hvd.allgather(uneven, name="uneven")) == sum(range(hvd.size()))


def test_process_sets_within_a_host_and_across(hosts):
    leaders = [ranks[0] for ranks in hosts]
    last_ones = [ranks[-1] for ranks in hosts]
    wanted = [leaders, last_ones, *hosts, [0, hvd.size() - 1]]
    different = [list(ranks) for ranks in {tuple(sorted(set(ranks))) for ranks in wanted}]
    different = sorted(ranks for ranks in different if len(ranks) < hvd.size())
    added = [hvd.add_process_set(ranks) for ranks in different]
    for process_set, ranks in zip(added, different, strict=True):
        if hvd.rank() in ranks:
            mine = np.full(70_001, hvd.rank(), np.float64)
            total = hvd.allreduce(mine, op=hvd.Sum, process_set=process_set)
            assert set(total) == {sum(ranks)}
            gathered = hvd.allgather(mine[:1], process_set=process_set)
            assert gathered.tolist() == ranks
            assert hvd.broadcast(mine[:2], ranks[-1], process_set=process_set)[0] == ranks[-1]
    for process_set in added:
        assert hvd.remove_process_set(process_set)


def test_whole_hosts_join(hosts):
    """The ranks of the last host have no more data; the others go on without it."""
    gone = hosts[-1]
    if hvd.rank() not in gone:
        for index in range(3):
            total = hvd.allreduce(np.ones(50_000), op=hvd.Sum, name=f"without {index}")
            assert set(total) == {hvd.size() - len(gone)}
    assert hvd.join() in range(hvd.size())
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="all again").tolist() == [hvd.size()] * 2


def test_ranks_that_disagree_all_hear_of_it():
    count = 3 if hvd.rank() == hvd.size() - 1 else 2
    with pytest.raises(hvd.HorovodInternalError, match="'quarrel'"):
        hvd.allreduce(np.ones(count), name="quarrel")
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="peace")[0] == hvd.size()


def test_worlds_follow_each_other():
    for _ in range(10):
        hvd.shutdown()
        hvd.init()
        assert hvd.allreduce(np.ones(1000), op=hvd.Sum, name="again")[-1] == hvd.size()
