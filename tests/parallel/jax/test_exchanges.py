"""allgather, broadcast and alltoall: dtype x shape x process set x mode against NumPy."""

from __future__ import annotations

import arithmetic
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd

DTYPES = [np.dtype(d) for d in ["f2", jnp.bfloat16, "f4", "f8", "u1", "i4", "i8", "?"]]
SHAPES = [(1,), (0,), (3, 2), (2, 0), (40, 1025)]


def inputs_of(process_set, dtype, shapes):
    """By shape, the inputs of all ranks of the set."""
    return [
        [arithmetic.values(dtype, shape, rank) for rank in process_set.ranks] for shape in shapes
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allgather(process_sets, mode, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = inputs_of(process_set, dtype, SHAPES)

        @mode
        def gather(arrays, process_set=process_set):
            singly = hvd.allgather(arrays, process_set=process_set)
            return singly + hvd.grouped_allgather(arrays, "group", process_set)

        results = gather([jnp.asarray(inputs[process_set.rank()]) for inputs in cases])
        for inputs, result in zip(cases * 2, results, strict=True):
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, np.concatenate(inputs))


def test_allgather_of_unequal_parts():
    result = hvd.allgather(jnp.full((hvd.rank(), 2), hvd.rank()))
    expected = [rank for rank in range(hvd.size()) for _ in range(rank)]
    assert result[:, 0].tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcast(process_sets, mode, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        root_rank = process_set.ranks[-1]
        cases = inputs_of(process_set, dtype, [(), *SHAPES])

        @mode
        def spread(arrays, root_rank=root_rank, process_set=process_set):
            return hvd.broadcast(arrays, root_rank, "spread", process_set)

        results = spread([jnp.asarray(inputs[process_set.rank()]) for inputs in cases])
        for inputs, result in zip(cases, results, strict=True):
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, inputs[-1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alltoall(process_sets, mode, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        members = process_set.size()
        (inputs,) = inputs_of(process_set, dtype, [(3 * members, 5)])
        exchange = mode(lambda array, s=process_set: hvd.alltoall(array, process_set=s))
        result = exchange(jnp.asarray(inputs[process_set.rank()]))
        expected, _ = arithmetic.exchanged(inputs, [[3] * members] * members, process_set.rank())
        np.testing.assert_array_equal(result, expected)


def test_alltoall_with_splits():
    ranks = range(hvd.size())
    splits = [[(rank + other) % 3 for other in ranks] for rank in ranks]
    inputs = [arithmetic.values("f4", (sum(splits[rank]), 2), rank) for rank in ranks]
    mine = jnp.asarray(inputs[hvd.rank()])
    for given in (splits[hvd.rank()], jnp.asarray(splits[hvd.rank()], jnp.int32)):
        result, received = hvd.alltoall(mine, given)
        expected, counts = arithmetic.exchanged(inputs, splits, hvd.rank())
        np.testing.assert_array_equal(result, expected)
        assert received.tolist() == counts


def test_alltoall_in_jit_takes_no_splits():
    with pytest.raises(ValueError, match="inside of jit"):
        jax.jit(lambda array: hvd.alltoall(array, [1] * hvd.size()))(jnp.ones(hvd.size()))
