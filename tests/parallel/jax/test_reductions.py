"""allreduce and reducescatter: dtype x shape x op x form x process set x mode against NumPy."""

from __future__ import annotations

import arithmetic
import jax.numpy as jnp
import numpy as np
import pytest
from sets import Digest

import horovod.jax as hvd

FLOATS = ["f2", jnp.bfloat16, "f4", "f8"]
INTEGERS = ["u1", "i1", "i2", "u2", "i4", "i8"]
DTYPES = [np.dtype(dtype) for dtype in [*FLOATS, *INTEGERS, "?"]]
NUMBERS = DTYPES[:-1]
SHAPES = [(), (0,), (1,), (17,), (3, 5), (64, 1025)]
# Of reducescatter: uneven parts, fewer rows than ranks, none at all.
ROWS = [(8, 3), (7,), (2, 5), (1,), (0, 4), (5, 0), (61, 1025)]
UNIT = {np.dtype(name): 2.0**-bits for name, bits in [("f2", 10), ("f4", 23), ("f8", 52)]}
UNIT[np.dtype(jnp.bfloat16)] = 2.0**-7


def inputs_of(process_set, dtype, shapes):
    """By shape, the inputs of all ranks of the set."""
    return [
        [arithmetic.values(dtype, shape, rank) for rank in process_set.ranks] for shape in shapes
    ]


def mine_of(process_set, cases):
    return [jnp.asarray(inputs[process_set.rank()]) for inputs in cases]


def check(op, inputs, result, digest, process_set):
    result = np.asarray(result)
    assert (result.shape, result.dtype) == (inputs[0].shape, inputs[0].dtype)
    if op == hvd.Adasum:
        arithmetic.assert_adasum(result, arithmetic.adasum(inputs), UNIT[result.dtype])
    else:
        np.testing.assert_array_equal(result, arithmetic.reduced(op, inputs))
    digest.add(process_set, np.frombuffer(result.tobytes(), np.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allreduce(process_sets, mode, dtype):
    digest = Digest()
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = inputs_of(process_set, dtype, SHAPES)
        ops = arithmetic.ops_of(dtype)

        @mode
        def reduce(arrays, ops=ops, process_set=process_set):
            return [
                hvd.allreduce(arrays, op, process_set=process_set)
                + hvd.grouped_allreduce(arrays, op, f"group {op}", process_set=process_set)
                for op in ops
            ]

        for op, results in zip(ops, reduce(mine_of(process_set, cases)), strict=True):
            for inputs, result in zip(cases * 2, results, strict=True):
                check(op, inputs, result, digest, process_set)
    digest.check()


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_factors(process_sets, mode, dtype):
    factors = [(2.0, 1.0), (1.0, 3.0), (0.5, 4.0)]
    wanted = [(op, *pair) for op in arithmetic.OPS for pair in factors]
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        (inputs,) = inputs_of(process_set, dtype, [(1000,)])

        @mode
        def reduce(array, process_set=process_set):
            return [
                hvd.allreduce(array, op, f"{op} {pair}", *pair, process_set=process_set)
                for op, *pair in wanted
            ]

        results = reduce(mine_of(process_set, [inputs])[0])
        for (op, *pair), result in zip(wanted, results, strict=True):
            np.testing.assert_array_equal(result, arithmetic.reduced(op, inputs, *pair))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_reducescatter(process_sets, mode, dtype):
    wanted = [(hvd.Average, 1.0, 1.0), (hvd.Sum, 1.0, 1.0), (hvd.Sum, 0.5, 4.0)]
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = inputs_of(process_set, dtype, ROWS)

        @mode
        def scatter(arrays, process_set=process_set):
            return [
                hvd.reducescatter(arrays, op, None, *pair, process_set)
                + hvd.grouped_reducescatter(arrays, op, None, *pair, process_set)
                for op, *pair in wanted
            ]

        for (op, *pair), results in zip(wanted, scatter(mine_of(process_set, cases)), strict=True):
            for inputs, result in zip(cases * 2, results, strict=True):
                part = arithmetic.rows_of_part(
                    len(inputs[0]), process_set.size(), process_set.rank()
                )
                expected = arithmetic.reduced(op, inputs, *pair)[part]
                assert result.shape == expected.shape
                np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
def test_compression(mode, compression):
    inputs = [arithmetic.values("f4", (50,), rank) for rank in range(hvd.size())]
    wires = [np.asarray(compression.compress(jnp.asarray(array))[0]) for array in inputs]
    reduce = mode(lambda array: hvd.allreduce(array, name="wire", compression=compression))
    result = np.asarray(reduce(jnp.asarray(inputs[hvd.rank()])))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, arithmetic.reduced(hvd.Average, wires).astype("f4"))


def test_pytrees_keep_their_structure(mode):
    tree = {"a": jnp.ones(3), "b": (jnp.zeros((2, 2)), None), "c": []}
    result = mode(lambda tree: hvd.allreduce(tree, hvd.Sum, "tree"))(tree)
    assert result["a"].tolist() == [hvd.size()] * 3
    assert result["b"][0].shape == (2, 2)
    assert result["b"][1] is None
    assert result["c"] == []


def test_large_arrays(mode):
    array = jnp.arange(3_000_000, dtype=jnp.float32) % 1000 + hvd.rank()
    result = mode(lambda array: hvd.allreduce(array, hvd.Sum))(array)
    expected = np.arange(3_000_000) % 1000 * hvd.size() + sum(range(hvd.size()))
    np.testing.assert_array_equal(result, expected)
