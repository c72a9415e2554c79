"""Gradients through the collectives against their closed forms, in three modes."""

from __future__ import annotations

import arithmetic
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.tensorflow as hvd  # noqa: E402
from horovod.tensorflow import mpi_ops  # noqa: E402

REDUCTIONS = [
    (hvd.Average, 1.0, 1.0),
    (hvd.Sum, 1.0, 1.0),
    (hvd.Sum, 2.0, 0.5),
    (hvd.Average, 3.0, 1.0),
]


def differentiated(collective, count):
    """A body: of ``count`` tensors and as many weights of the results, the tensors' gradients."""

    def body(given):
        tensors, weights = given[:count], given[count:]
        if tf.executing_eagerly() or isinstance(tensors[0].graph, tf.__internal__.FuncGraph):
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                total = weighted(collective(tensors), weights)
            return tape.gradient(total, tensors)
        return tf.gradients(weighted(collective(tensors), weights), tensors)

    return body


def weighted(results, weights):
    pairs = zip(results, weights, strict=True)
    return tf.add_n([tf.reduce_sum(result * weight) for result, weight in pairs])


def weights_of(process_set, *shapes):
    """By shape, the weights that the ranks of the set give to a result of that shape."""
    return [
        [arithmetic.values("f8", shape, 100, i, rank) for rank in process_set.ranks]
        for i, shape in enumerate(shapes)
    ]


def check(mode, process_set, collective, inputs, weights, expected):
    """``inputs``, ``weights``: by tensor and rank of the set; ``expected``: of this rank."""
    me = process_set.rank()
    given = [of_ranks[me] for of_ranks in [*inputs, *weights]]
    gradients = mode(differentiated(collective, len(inputs)), given)
    for gradient, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-12)


def included(process_sets):
    return list(filter(hvd.ProcessSet.included, process_sets))


def reduced_factor(process_set, op, prescale, postscale):
    return prescale * postscale / (process_set.size() if op == hvd.Average else 1)


@pytest.mark.parametrize("options", REDUCTIONS)
def test_allreduce(process_sets, mode, options):
    for process_set in included(process_sets):
        weights = weights_of(process_set, (3, 4), (5,))
        expected = [np.sum(w, axis=0) * reduced_factor(process_set, *options) for w in weights]
        for collective in (
            lambda tensors, s=process_set: [
                mpi_ops.allreduce(tensor, f"x{i}", *options, process_set=s)
                for i, tensor in enumerate(tensors)
            ],
            lambda tensors, s=process_set: mpi_ops.grouped_allreduce(
                tensors, "group", *options, process_set=s
            ),
            lambda tensors, s=process_set: mpi_ops.allreduce_batch(
                tensors, ["a", "b"], *options, process_set=s
            ),
        ):
            check(mode, process_set, collective, weights, weights, expected)


def test_allgather(process_sets, mode):
    for process_set in included(process_sets):
        ranks = process_set.ranks
        rows = [[rank % 3 for rank in ranks], [rank + 1 for rank in ranks]]
        inputs = [
            [
                arithmetic.values("f8", (count, 2), rank)
                for rank, count in zip(ranks, of, strict=True)
            ]
            for of in rows
        ]
        weights = weights_of(process_set, *[(sum(of), 2) for of in rows])
        expected = [
            np.split(np.mean(w, axis=0), np.cumsum(of))[process_set.rank()]
            for w, of in zip(weights, rows, strict=True)
        ]
        for collective in (
            lambda tensors, s=process_set: [
                mpi_ops.allgather(tensor, f"x{i}", process_set=s)
                for i, tensor in enumerate(tensors)
            ],
            lambda tensors, s=process_set: mpi_ops.grouped_allgather(
                tensors, "group", process_set=s
            ),
        ):
            check(mode, process_set, collective, inputs, weights, expected)


def test_broadcast(process_sets, mode):
    for process_set in included(process_sets):
        root = process_set.ranks[-1]
        weights = weights_of(process_set, (5,), (2, 2))
        is_root = root == hvd.rank()
        expected = [np.mean(w, axis=0) * is_root for w in weights]
        for collective in (
            lambda tensors, s=process_set, r=root: [
                mpi_ops.broadcast(tensor, r, f"x{i}", process_set=s)
                for i, tensor in enumerate(tensors)
            ],
            lambda tensors, s=process_set, r=root: mpi_ops.broadcast_batch(
                tensors, ["a", "b"], r, s
            ),
        ):
            check(mode, process_set, collective, weights, weights, expected)


@pytest.mark.parametrize("rows_left", [0, 2])
def test_alltoall(process_sets, mode, rows_left):
    for process_set in included(process_sets):
        ranks, me = process_set.ranks, process_set.rank()
        sent = np.array([[(source + 2 * target) % 4 for target in ranks] for source in ranks])
        inputs = [arithmetic.values("f8", (row.sum() + rows_left, 3), 1) for row in sent]
        weights = [
            arithmetic.values("f8", (column.sum(), 3), 100, int(rank))
            for rank, column in zip(ranks, sent.T, strict=True)
        ]
        # What each rank gave to the rows of mine, in the order in which I sent them.
        parts = [
            np.split(weight, np.cumsum(column))[me]
            for weight, column in zip(weights, sent.T, strict=True)
        ]
        expected = np.concatenate([*parts, np.zeros((rows_left, 3))])
        splits = [int(rows) for rows in sent[me]]

        def collective(tensors, splits=splits, process_set=process_set):
            return [mpi_ops.alltoall(tensors[0], splits, "x", process_set=process_set)[0]]

        check(mode, process_set, collective, [inputs], [weights], [expected])


@pytest.mark.parametrize("options", REDUCTIONS)
def test_reducescatter(process_sets, mode, options):
    op, prescale, postscale = options
    for process_set in included(process_sets):
        size = process_set.size()
        factor = prescale * postscale * (size if op == hvd.Sum else 1)
        inputs = weights_of(process_set, (7, 3), (2 * size,))
        weights = [
            [
                arithmetic.values(
                    "f8", of[0][arithmetic.rows_of_part(len(of[0]), size, i)].shape, i
                )
                for i in range(size)
            ]
            for of in inputs
        ]
        expected = [np.concatenate(of) * factor for of in weights]
        for collective in (
            lambda tensors, s=process_set: [
                mpi_ops.reducescatter(tensor, f"x{i}", *options, process_set=s)
                for i, tensor in enumerate(tensors)
            ],
            lambda tensors, s=process_set: mpi_ops.grouped_reducescatter(
                tensors, "group", *options, process_set=s
            ),
        ):
            check(mode, process_set, collective, inputs, weights, expected)


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product])
def test_ops_without_a_gradient(mode, op):
    body = differentiated(lambda tensors: [mpi_ops.allreduce(tensors[0], "x", op)], 1)
    with pytest.raises(NotImplementedError, match="Average and Sum"):
        mode(body, [np.ones(2), np.ones(2)])


def test_twice():
    tensor = tf.constant([2.0])
    with tf.GradientTape() as second, tf.GradientTape() as first:
        for tape in (second, first):
            tape.watch(tensor)
        result = mpi_ops.allreduce(tensor**3, "cube")
        slope = first.gradient(result, tensor)
        curvature = second.gradient(slope, tensor)
    assert (slope.numpy().tolist(), curvature.numpy().tolist()) == ([12.0], [12.0])
