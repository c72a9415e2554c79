"""allgather, broadcast and alltoall: dtype x shape x process set against NumPy."""

from __future__ import annotations

import arithmetic
import mxnet as mx
import numpy as np
import pytest

import horovod.mxnet as hvd

DTYPES = [np.dtype(dtype) for dtype in ["f2", "f4", "f8", "u1", "i1", "i4", "i8"]]
SHAPES = [(1,), (0,), (3, 2), (2, 0), (40, 1025)]


def inputs_of(process_set, dtype, shapes):
    """By shape, the inputs of all ranks of the set."""
    return [
        [arithmetic.values(dtype, shape, rank) for rank in process_set.ranks] for shape in shapes
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allgather(process_sets, make, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = inputs_of(process_set, dtype, SHAPES)
        mine = [make(inputs[process_set.rank()]) for inputs in cases]
        results = [hvd.allgather(array, process_set=process_set) for array in mine]
        results += hvd.grouped_allgather(mine, "group", 0, process_set)
        for inputs, result in zip(cases * 2, results, strict=True):
            assert isinstance(result, type(mine[0]))
            assert np.dtype(result.dtype) == dtype
            np.testing.assert_array_equal(result.asnumpy(), np.concatenate(inputs))


def test_allgather_of_unequal_parts_is_like_any_array():
    parts = [hvd.allgather(mx.nd.full((hvd.rank(), 2), hvd.rank() + i)) for i in range(4)]
    expected = np.array([rank for rank in range(hvd.size()) for _ in range(rank)])
    assert parts[0].shape == (len(expected), 2)
    assert type(parts[0]) is mx.nd.NDArray
    if len(expected):
        assert (parts[1] * 2).asnumpy()[:, 0].tolist() == ((expected + 1) * 2).tolist()
        assert mx.nd.concat(parts[2], parts[3], dim=0).shape == (2 * len(expected), 2)
        parts[0][:] = 5
        assert parts[0].asnumpy().min() == 5


def test_a_gathered_array_that_nobody_looks_at():
    for _ in range(20):
        hvd.allgather(mx.nd.ones((1000, 3)))
    mx.nd.waitall()
    assert hvd.allgather(mx.nd.ones(1)).size == hvd.size()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcast(process_sets, make, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        root_rank = process_set.ranks[-1]
        cases = inputs_of(process_set, dtype, SHAPES)
        mine = [make(inputs[process_set.rank()]) for inputs in cases]
        results = [hvd.broadcast(array, root_rank, process_set=process_set) for array in mine]
        for inputs, array in zip(cases, mine, strict=True):
            np.testing.assert_array_equal(array.asnumpy(), inputs[process_set.rank()])
        results += [hvd.broadcast_(array, root_rank, None, 0, process_set) for array in mine]
        for inputs, result in zip(cases * 2, results, strict=True):
            assert np.dtype(result.dtype) == dtype
            np.testing.assert_array_equal(result.asnumpy(), inputs[-1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alltoall(process_sets, make, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        members = process_set.size()
        (inputs,) = inputs_of(process_set, dtype, [(3 * members, 5)])
        result = hvd.alltoall(make(inputs[process_set.rank()]), process_set=process_set)
        expected, _ = arithmetic.exchanged(inputs, [[3] * members] * members, process_set.rank())
        np.testing.assert_array_equal(result.asnumpy(), expected)


def test_alltoall_with_splits(make):
    ranks = range(hvd.size())
    splits = [[(rank + other) % 3 for other in ranks] for rank in ranks]
    inputs = [arithmetic.values("f4", (sum(splits[rank]), 2), rank) for rank in ranks]
    mine = make(inputs[hvd.rank()])
    for given in (splits[hvd.rank()], make(np.array(splits[hvd.rank()], np.int32))):
        result, received = hvd.alltoall(mine, given)
        expected, counts = arithmetic.exchanged(inputs, splits, hvd.rank())
        np.testing.assert_array_equal(result.asnumpy(), expected)
        assert received.dtype == np.int32
        assert received.asnumpy().tolist() == counts
