"""allgather, broadcast and alltoall: dtype x rows x form x process set x mode against NumPy."""

from __future__ import annotations

import arithmetic
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.tensorflow as hvd  # noqa: E402
from horovod.tensorflow import mpi_ops  # noqa: E402

BFLOAT16 = tf.bfloat16.as_numpy_dtype
NAMES = ["f2", BFLOAT16, "f4", "f8", "u1", "i1", "u2", "i2", "i4", "i8", "?"]
DTYPES = [np.dtype(name) for name in NAMES]
RESTS = [(), (3,), (2, 0), (1025,)]
# Rows that a rank brings.
ROWS = {
    "equal": lambda rank: 3,
    "uneven": lambda rank: 2 * rank % 5 + 1,
    "none on rank 0": lambda rank: rank,
    "none on most": lambda rank: 4 * (rank % 3 == 1),
    "none": lambda rank: 0,
}
# How many rows one rank sends to another one.
SPLITS = {
    "equal": lambda source, target: 2,
    "uneven": lambda source, target: (source + 2 * target) % 4,
    "to oneself": lambda source, target: 5 * (source == target),
    "to one": lambda source, target: 3 * (target % 3 == 1),
    "none": lambda source, target: 0,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allgather(process_sets, mode, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = [
            [arithmetic.values(dtype, (rows(rank), *rest), rank) for rank in process_set.ranks]
            for rows in ROWS.values()
            for rest in RESTS
        ]

        def body(tensors, process_set=process_set):
            singly = [
                mpi_ops.allgather(tensor, f"gather {i}", process_set=process_set)
                for i, tensor in enumerate(tensors)
            ]
            return singly, mpi_ops.grouped_allgather(tensors, "gathers", process_set=process_set)

        results = mode(body, [inputs[process_set.rank()] for inputs in cases])
        for inputs, result in zip(cases * 2, results, strict=True):
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, np.concatenate(inputs))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcast_from_every_root(process_sets, mode, dtype):
    shapes = [(), (0,), (1,), (17,), (3, 5), (64, 1025)]
    for process_set in filter(hvd.ProcessSet.included, process_sets):

        def body(tensors, process_set=process_set):
            results = []
            for root in process_set.ranks:
                names = [f"batch {root}.{i}" for i in range(len(tensors))]
                results += [
                    mpi_ops.broadcast(tensor, root, f"one {root}.{i}", process_set=process_set)
                    for i, tensor in enumerate(tensors)
                ]
                results += mpi_ops.broadcast_batch(tensors, names, root, process_set)
            return results

        mine = [arithmetic.values(dtype, shape, hvd.rank()) for shape in shapes]
        wanted = [
            arithmetic.values(dtype, shape, root)
            for root in process_set.ranks
            for shape in shapes * 2
        ]
        for result, expected in zip(mode(body, mine), wanted, strict=True):
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, expected)


def exchanges(process_set, dtype):
    """Inputs of all ranks and how many rows go where, for each kind of splits."""
    for splits in SPLITS.values():
        sent = [[splits(s, t) for t in process_set.ranks] for s in process_set.ranks]
        for rest, rows_left in [*((rest, 0) for rest in RESTS), ((3,), 2)]:
            pairs = zip(process_set.ranks, sent, strict=True)
            inputs = [
                arithmetic.values(dtype, (sum(counts) + rows_left, *rest), source)
                for source, counts in pairs
            ]
            yield inputs, sent


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alltoall(process_sets, mode, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = list(exchanges(process_set, dtype))
        me = process_set.rank()

        def body(given, process_set=process_set):
            tensors, splits = given[::2], given[1::2]
            return [
                mpi_ops.alltoall(tensor, split, f"alltoall {i}", process_set=process_set)
                for i, (tensor, split) in enumerate(zip(tensors, splits, strict=True))
            ]

        given = [
            array for inputs, sent in cases for array in (inputs[me], np.array(sent[me], "i4"))
        ]
        results = iter(mode(body, given))
        for inputs, sent in cases:
            expected, counts = arithmetic.exchanged(inputs, sent, me)
            result, received = next(results), next(results)
            assert (result.dtype, received.dtype) == (dtype, np.int32)
            np.testing.assert_array_equal(result, expected)
            assert received.tolist() == counts


@pytest.mark.parametrize("dtype", [np.dtype("f4"), np.dtype("?")], ids=str)
def test_alltoall_without_splits(process_sets, mode, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        size = process_set.size()
        cases = [
            [arithmetic.values(dtype, (rows * size, 7), rank) for rank in process_set.ranks]
            for rows in (0, 1, 3, 500)
        ]

        def body(tensors, process_set=process_set):
            return [
                mpi_ops.alltoall(tensor, None, f"equal {i}", process_set=process_set)
                for i, tensor in enumerate(tensors)
            ]

        results = iter(mode(body, [inputs[process_set.rank()] for inputs in cases]))
        for inputs in cases:
            sent = [[len(inputs[0]) // size] * size] * size
            expected, counts = arithmetic.exchanged(inputs, sent, process_set.rank())
            np.testing.assert_array_equal(next(results), expected)
            assert next(results).tolist() == counts


def test_splits_as_a_list(mode):
    results = mode(
        lambda tensors: mpi_ops.alltoall(tensors[0], [1] * hvd.size(), "listed"),
        [np.full(hvd.size(), hvd.rank(), "i8")],
    )
    assert results[0].tolist() == list(range(hvd.size()))
    assert results[1].tolist() == [1] * hvd.size()
