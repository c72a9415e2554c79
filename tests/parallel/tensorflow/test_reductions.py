"""allreduce and reducescatter: dtype x shape x op x form x process set x mode against NumPy."""

from __future__ import annotations

import arithmetic
import numpy as np
import pytest
from sets import Digest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.tensorflow as hvd  # noqa: E402
from horovod.tensorflow import mpi_ops  # noqa: E402

BFLOAT16 = tf.bfloat16.as_numpy_dtype
FLOATS = ["f2", BFLOAT16, "f4", "f8"]
INTEGERS = ["u1", "i1", "i2", "i4", "i8"]
DTYPES = [np.dtype(dtype) for dtype in [*FLOATS, *INTEGERS, "?"]]
SHAPES = [(), (0,), (1,), (17,), (3, 5), (64, 1025)]
# Of reducescatter: uneven parts, fewer rows than ranks, none at all.
ROWS = [(8, 3), (7,), (2, 5), (1,), (0, 4), (5, 0), (61, 1025)]
UNIT = {np.dtype(name): 2.0**-bits for name, bits in [("f2", 10), ("f4", 23), ("f8", 52)]}
UNIT[np.dtype(BFLOAT16)] = 2.0**-7


def inputs_of(process_set, dtype, shapes):
    """By shape, the inputs of all ranks of the set."""
    return [
        [arithmetic.values(dtype, shape, rank) for rank in process_set.ranks] for shape in shapes
    ]


def mine_of(process_set, cases):
    return [inputs[process_set.rank()] for inputs in cases]


def allreduces(tensors, op, **options):
    """Every form of allreduce on these tensors: three results each."""
    names = [f"batch {op}.{i}" for i in range(len(tensors))]
    singly = [
        mpi_ops.allreduce(tensor, f"single.{op}.{i}", op, **options)
        for i, tensor in enumerate(tensors)
    ]
    return [
        singly,
        mpi_ops.grouped_allreduce(tensors, f"group.{op}", op, **options),
        mpi_ops.allreduce_batch(tensors, names, op, **options),
    ]


def check_allreduce(op, cases, results, digest, process_set):
    for index, result in enumerate(results):
        inputs = cases[index % len(cases)]
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

        def body(tensors, ops=ops, process_set=process_set):
            return [allreduces(tensors, op, process_set=process_set) for op in ops]

        results = mode(body, mine_of(process_set, cases))
        for op, of_op in zip(ops, np.split(np.arange(len(results)), len(ops)), strict=True):
            check_allreduce(op, cases, [results[i] for i in of_op], digest, process_set)
    digest.check()


@pytest.mark.parametrize("dtype", [np.dtype(d) for d in [*FLOATS, *INTEGERS]], ids=str)
def test_factors(process_sets, mode, dtype):
    factors = [(2.0, 1.0), (1.0, 3.0), (0.5, 4.0)]
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        (inputs,) = inputs_of(process_set, dtype, [(1000,)])
        wanted = [(op, *pair) for op in arithmetic.OPS for pair in factors]

        def body(tensors, wanted=wanted, process_set=process_set):
            return [
                mpi_ops.allreduce(tensors[0], f"factors {i}", *options, process_set=process_set)
                for i, options in enumerate(wanted)
            ]

        results = mode(body, mine_of(process_set, [inputs]))
        for (op, *pair), result in zip(wanted, results, strict=True):
            np.testing.assert_array_equal(result, arithmetic.reduced(op, inputs, *pair))


def reducescatters(tensors, op, *factors, **options):
    """Both forms of reducescatter on these tensors."""
    name = f"{op}.{factors}"
    singly = [
        mpi_ops.reducescatter(tensor, f"single {name}.{i}", op, *factors, **options)
        for i, tensor in enumerate(tensors)
    ]
    group = mpi_ops.grouped_reducescatter(tensors, f"group {name}", op, *factors, **options)
    return [singly, group]


@pytest.mark.parametrize("dtype", [np.dtype(d) for d in [*FLOATS, *INTEGERS]], ids=str)
def test_reducescatter(process_sets, mode, dtype):
    wanted = [(hvd.Average, 1.0, 1.0), (hvd.Sum, 1.0, 1.0), (hvd.Sum, 0.5, 4.0)]
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        cases = inputs_of(process_set, dtype, ROWS)

        def body(tensors, process_set=process_set):
            return [reducescatters(tensors, *way, process_set=process_set) for way in wanted]

        results = iter(mode(body, mine_of(process_set, cases)))
        for way in wanted:
            for inputs in cases * 2:
                whole = arithmetic.reduced(way[0], inputs, *way[1:])
                part = arithmetic.rows_of_part(len(whole), process_set.size(), process_set.rank())
                result = next(results)
                assert result.dtype == whole.dtype
                np.testing.assert_array_equal(result, whole[part])


def test_a_group_of_many_dtypes_and_shapes(mode):
    dtypes = DTYPES * 4
    inputs = [
        [arithmetic.values(dtype, (i, 3), rank) for i, dtype in enumerate(dtypes)]
        for rank in range(hvd.size())
    ]
    results = mode(
        lambda tensors: mpi_ops.grouped_allreduce(tensors, "mixed", hvd.Sum), inputs[hvd.rank()]
    )
    for result, *of_ranks in zip(results, *inputs, strict=True):
        assert result.dtype == of_ranks[0].dtype
        np.testing.assert_array_equal(result, arithmetic.reduced(hvd.Sum, of_ranks))


def test_infinities_and_nans_reach_every_rank(mode):
    special = np.array([np.nan, np.inf, -np.inf, 1], "f4")
    inputs = [np.ones(4, "f4")] * (hvd.size() - 1) + [special]

    def body(tensors):
        return [mpi_ops.allreduce(tensors[0], f"special {op}", op) for op in arithmetic.OPS]

    for op, result in zip(arithmetic.OPS, mode(body, [inputs[hvd.rank()]]), strict=True):
        np.testing.assert_array_equal(result, arithmetic.reduced(op, inputs))
