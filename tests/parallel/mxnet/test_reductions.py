"""allreduce and reducescatter: dtype x shape x op x form x process set against NumPy."""

from __future__ import annotations

import arithmetic
import mxnet as mx
import numpy as np
import pytest
from sets import Digest

import horovod.mxnet as hvd

DTYPES = [np.dtype(dtype) for dtype in ["f2", "f4", "f8", "u1", "i1", "i4", "i8"]]
SHAPES = [(0,), (1,), (17,), (3, 5), (64, 1025)]
# Of reducescatter: uneven parts, fewer rows than ranks, none at all.
ROWS = [(8, 3), (7,), (2, 5), (1,), (0, 4), (61, 1025)]


def inputs_of(process_set, dtype, shapes):
    """By shape, the inputs of all ranks of the set."""
    return [
        [arithmetic.values(dtype, shape, rank) for rank in process_set.ranks] for shape in shapes
    ]


def check(expected, result, digest, process_set):
    result = result.asnumpy()
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(result, expected)
    digest.add(process_set, np.frombuffer(result.tobytes(), np.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allreduce(process_sets, make, dtype):
    digest = Digest()
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = inputs_of(process_set, dtype, SHAPES)
        given = [inputs[process_set.rank()] for inputs in cases]
        mine = [make(array) for array in given]
        options = {"process_set": process_set}
        for op in arithmetic.OPS:
            results = [hvd.allreduce(array, op=op, **options) for array in mine]
            results += hvd.grouped_allreduce(mine, op=op, **options)
            copies = [make(array) for array in given]
            assert hvd.grouped_allreduce_(copies, op=op, **options) is copies
            again = [make(array) for array in given]
            results += copies + [hvd.allreduce_(array, op=op, **options) for array in again]
            assert results[-1] is again[-1]
            for inputs, result in zip(cases * 4, results, strict=True):
                assert isinstance(result, type(mine[0]))
                check(arithmetic.reduced(op, inputs), result, digest, process_set)
        for inputs, array in zip(cases, mine, strict=True):
            np.testing.assert_array_equal(array.asnumpy(), inputs[process_set.rank()])
    digest.check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_factors(process_sets, make, dtype):
    factors = [(2.0, 1.0), (1.0, 3.0), (0.5, 4.0)]
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        (inputs,) = inputs_of(process_set, dtype, [(1000,)])
        array = make(inputs[process_set.rank()])
        for op in arithmetic.OPS:
            for prescale, postscale in factors:
                result = hvd.allreduce(
                    array, None, f"{op}", 0, prescale, postscale, process_set, op
                )
                expected = arithmetic.reduced(op, inputs, prescale, postscale)
                np.testing.assert_array_equal(result.asnumpy(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reducescatter(process_sets, make, dtype):
    wanted = [(hvd.Average, 1.0, 1.0), (hvd.Sum, 1.0, 1.0), (hvd.Sum, 0.5, 4.0)]
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = inputs_of(process_set, dtype, ROWS)
        mine = [make(inputs[process_set.rank()]) for inputs in cases]
        for op, *factors in wanted:
            rest = (op, None, 0, process_set, *factors)
            results = [hvd.reducescatter(array, *rest) for array in mine]
            results += hvd.grouped_reducescatter(mine, *rest)
            for inputs, result in zip(cases * 2, results, strict=True):
                part = arithmetic.rows_of_part(
                    len(inputs[0]), process_set.size(), process_set.rank()
                )
                expected = arithmetic.reduced(op, inputs, *factors)[part]
                assert isinstance(result, type(mine[0]))
                assert result.shape == expected.shape
                np.testing.assert_array_equal(result.asnumpy(), expected)


def test_the_deprecated_average():
    for average, expected in [(True, 1.0), (False, hvd.size())]:
        with pytest.warns(DeprecationWarning, match="op="):
            assert hvd.allreduce(mx.nd.ones(2), average).asnumpy().tolist() == [expected] * 2


def test_empty_groups_are_returned():
    for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_allgather):
        empty = []
        assert call(empty) is empty
    assert hvd.grouped_reducescatter([]) == []


def test_a_group_of_views_of_one_array():
    array = mx.nd.arange(12).reshape((6, 2))
    hvd.grouped_allreduce_([array[0:2], array[3:5]], op=hvd.Sum, name="views")
    expected = np.arange(12.0).reshape(6, 2)
    expected[[0, 1, 3, 4]] *= hvd.size()
    np.testing.assert_array_equal(array.asnumpy(), expected)
    twice = hvd.grouped_allreduce([array, array], op=hvd.Average, name="twice")
    for result in twice:
        np.testing.assert_array_equal(result.asnumpy(), expected)


def test_compression():
    array = mx.nd.array([1.0, 1 + 2**-12, 3])
    wire, context = hvd.Compression.fp16.compress(array)
    assert wire.dtype == np.float16
    assert hvd.Compression.fp16.decompress(wire, context).dtype == np.float32
    integers = mx.nd.ones(2, dtype="int32")
    for compression in (hvd.Compression.fp16, hvd.Compression.none):
        assert compression.compress(integers) == (integers, None)
