"""Random programs: tensors, dtypes, sizes and orders, another order on every rank."""

import functools

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies

import horovod.numpy as hvd

DTYPES = ["f2", "f4", "f8", "u1", "i1", "i2", "i4", "i8"]

# Every rank must draw the same programs.
same_on_all_ranks = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=25,
    suppress_health_check=list(HealthCheck),
)

operations = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(["allreduce", "allgather", "broadcast"]),
        strategies.sampled_from(DTYPES),
        strategies.one_of(
            strategies.integers(0, 40),
            strategies.integers(1000, 30_000),
            strategies.sampled_from([300_000, 700_001]),
        ),
        strategies.integers(0, 3),
        strategies.sampled_from([hvd.Sum, hvd.Min, hvd.Max]),
    ),
    min_size=1,
    max_size=12,
)


def values(dtype, count, rank, index):
    random = np.random.default_rng([rank, index, count])
    return random.integers(0, 20, count).astype(dtype)


def start(index, program_id, operation, rank):
    kind, dtype, count, root, op = operation
    name = f"{program_id}.{index}"
    if kind == "allreduce":
        return hvd.allreduce_async(values(dtype, count, rank, index), op=op, name=name)
    if kind == "broadcast":
        return hvd.broadcast_async(values(dtype, count, rank, index), root % hvd.size(), name=name)
    return hvd.allgather_async(values(dtype, count + rank, rank, index), name=name)


def expected(index, operation):
    kind, dtype, count, root, op = operation
    ranks = range(hvd.size())
    if kind == "allreduce":
        combine = {hvd.Sum: np.add, hvd.Min: np.minimum, hvd.Max: np.maximum}[op]
        inputs = [values(dtype, count, rank, index) for rank in ranks]
        return functools.reduce(combine, inputs).astype(dtype)
    if kind == "broadcast":
        return values(dtype, count, root % hvd.size(), index)
    return np.concatenate([values(dtype, count + rank, rank, index) for rank in ranks])


@same_on_all_ranks
@given(program=operations, seed=strategies.integers(0, 2**32 - 1))
def test_random_programs(program, seed):
    order = np.random.default_rng([seed, hvd.rank()]).permutation(len(program))
    program_id = f"{seed}.{len(program)}"
    handles = {i: start(i, program_id, program[i], hvd.rank()) for i in order}
    for i in np.random.default_rng([seed, hvd.rank(), 1]).permutation(len(program)):
        np.testing.assert_array_equal(hvd.synchronize(handles[i]), expected(i, program[i]))
