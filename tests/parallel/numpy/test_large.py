"""More elements than 32 bits count. Needs about 5 GB per rank: HOROVOD_TEST_LARGE=1 runs it."""

from __future__ import annotations

import os

import numpy as np
import pytest

import horovod.numpy as hvd

COUNT = 2**31 + 8
PLACES = [0, 1, 2**30, 2**31 - 1, 2**31, COUNT - 1]

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("HOROVOD_TEST_LARGE") != "1", reason="large: set HOROVOD_TEST_LARGE=1"
    ),
]


@pytest.fixture
def large() -> np.ndarray:
    """Mostly zero: 1 + rank + i at the i-th of the places."""
    array = np.zeros(COUNT, np.int8)
    array[PLACES] = hvd.rank() + 1 + np.arange(len(PLACES))
    return array


def check(array: np.ndarray, expected: np.ndarray) -> None:
    assert array[PLACES].tolist() == expected.tolist()
    assert np.count_nonzero(array) == np.count_nonzero(expected)


def test_allreduce(large):
    hvd.allreduce_(large, op=hvd.Sum, name="large")
    ranks = np.arange(hvd.size())
    check(large, (ranks[:, None] + 1 + np.arange(len(PLACES))).sum(0))


def test_broadcast(large):
    root = hvd.size() - 1
    hvd.broadcast_(large, root, "large")
    check(large, root + 1 + np.arange(len(PLACES)))


def test_allgather(large):
    """Only the last rank brings much, so that the result fits where the others' inputs do."""
    is_last = hvd.rank() == hvd.size() - 1
    result = hvd.allgather(large if is_last else large[:2].copy(), "large")
    before = 2 * (hvd.size() - 1)
    assert len(result) == COUNT + before
    assert result[:before].tolist() == [rank + i for rank in range(hvd.size() - 1) for i in (1, 2)]
    check(result[before:], hvd.size() + np.arange(len(PLACES)))


def test_alltoall(large):
    """All from the first rank to the last one, in rows of eight elements."""
    table = large.reshape(-1, 8)
    is_first, is_last = hvd.rank() == 0, hvd.rank() == hvd.size() - 1
    nothing = [0] * (hvd.size() - 1)
    splits = [*nothing, len(table)] if is_first else [*nothing, 0]
    result, received = hvd.alltoall(table, splits, "large")
    assert received.tolist() == ([len(table), *nothing] if is_last else [0, *nothing])
    if is_last:
        check(result.ravel(), 1 + np.arange(len(PLACES)))


def test_more_rows_than_received_splits_can_say(large):
    with pytest.raises(ValueError, match="received splits are int32"):
        hvd.alltoall(large, [COUNT] + [0] * (hvd.size() - 1), "large")


def test_reducescatter(large):
    result = hvd.reducescatter(large, "large", hvd.Sum)
    begin, end = (COUNT * (hvd.rank() + i) // hvd.size() for i in (0, 1))
    assert len(result) in (end - begin, end - begin + 1)
    ranks = np.arange(hvd.size())
    whole = (ranks[:, None] + 1 + np.arange(len(PLACES))).sum(0)
    nonzero = hvd.allgather(result[result != 0], "nonzero")
    assert nonzero.tolist() == whole.tolist()
