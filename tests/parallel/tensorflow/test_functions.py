"""Variables, rows and objects between ranks; hooks; the public functions' own arguments."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

v1 = tf.compat.v1


@pytest.fixture
def last():
    return hvd.size() - 1


def mine(dtype):
    """Values of this rank, exact in every dtype."""
    return tf.cast([[hvd.rank(), 1], [0, 1]], dtype)


DTYPES = [tf.float32, tf.float16, tf.bfloat16, tf.int8, tf.bool, tf.uint32, tf.complex64, tf.int64]


@pytest.mark.parametrize("inplace", [False, True])
def test_broadcast_variables(last, inplace):
    variables = [tf.Variable(mine(dtype)) for dtype in DTYPES]
    hvd.broadcast_variables(variables, last, inplace=inplace)
    for variable in variables:
        expected = tf.cast([[last, 1], [0, 1]], variable.dtype)
        assert tf.reduce_all(tf.equal(variable, expected)), variable.dtype


@pytest.mark.parametrize("inplace", [False, True])
def test_variables_without_bytes_are_named(last, inplace):
    variable = tf.Variable(["text"], name="words")
    with pytest.raises(ValueError, match="variable 'words:0' is of string, which cannot be broad"):
        hvd.broadcast_variables([variable], last, inplace=inplace)


@pytest.mark.parametrize("inplace", [False, True])
def test_broadcast_variables_in_a_function(last, inplace):
    variables = [tf.Variable(mine(tf.float32)) for _ in range(3)]

    @tf.function
    def function():
        hvd.broadcast_variables(variables, last, inplace=inplace)
        return variables[2] * 2

    assert function().numpy().tolist() == [[2.0 * last, 2.0], [0.0, 2.0]]


def test_broadcast_variables_of_keras(last):
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((2,)), layers.Dense(3), layers.BatchNormalization()])
    model.set_weights([value + hvd.rank() for value in model.get_weights()])
    hvd.broadcast_variables(model.variables, last)
    found = hvd.allgather_object([value.tolist() for value in model.get_weights()])
    assert all(other == found[last] for other in found)


def test_broadcast_variables_on_process_sets(process_sets):
    for process_set in process_sets:
        if process_set.included():
            variable = tf.Variable(float(hvd.rank()))
            root = process_set.ranks[-1]
            hvd.broadcast_variables([variable], root, process_set=process_set)
            assert variable.numpy() == root


@pytest.mark.parametrize("use_resource", [True, False])
def test_broadcast_global_variables(last, use_resource):
    with tf.Graph().as_default(), v1.Session() as session:
        first = v1.get_variable(
            "first", initializer=[float(hvd.rank())] * 3, use_resource=use_resource
        )
        second = v1.get_variable("second", initializer=hvd.rank(), use_resource=use_resource)
        operation = hvd.broadcast_global_variables(last)
        session.run(v1.global_variables_initializer())
        session.run(operation)
        assert session.run(first).tolist() == [last] * 3
        assert session.run(second) == last


@pytest.mark.parametrize("device", ["", "/cpu:0"])
def test_hook_in_two_graphs(last, device):
    hook = hvd.BroadcastGlobalVariablesHook(last, device)
    for shape in (2, 3):
        with tf.Graph().as_default():
            weight = v1.get_variable("weight", initializer=[float(hvd.rank())] * shape)
            with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                assert session.run(weight).tolist() == [last] * shape


def test_ranks_disagree_about_a_variable(last):
    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
    variable = tf.Variable(tf.zeros([2 + hvd.rank()]))
    with pytest.raises(tf.errors.FailedPreconditionError):
        hvd.broadcast_variables([variable], 0)
    hvd.broadcast_variables([tf.Variable(1.0)], 0)


def test_objects(last):
    objects = [{"rank": rank, "text": "x" * 100 * rank} for rank in range(hvd.size())]
    own = objects[hvd.rank()]
    assert hvd.broadcast_object(own, last) == objects[last]
    assert hvd.allgather_object(own) == objects
    again = hvd.broadcast_object_fn(last, name="again")
    for number in range(3):
        assert again((number, own)) == (number, objects[last])
    with tf.Graph().as_default(), v1.Session() as session:
        assert hvd.broadcast_object(own, last, session=session) == objects[last]
        assert hvd.allgather_object(own, session=session, name="in_session") == objects


def rows_of(rank: int):
    """Rank r has r + 1 rows."""
    count = rank + 1
    values = tf.ones([count, 2]) * (rank + 1)
    return tf.IndexedSlices(values, tf.range(count), tf.constant([hvd.size(), 2]))


def dense_sum_of_rows():
    return sum(tf.convert_to_tensor(rows_of(rank)) for rank in range(hvd.size()))


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("is_function", [False, True])
def test_rows(op, is_function):
    def reduce():
        found = hvd.allreduce(rows_of(hvd.rank()), op=op)
        assert isinstance(found, tf.IndexedSlices)
        return found

    found = (tf.function(reduce) if is_function else reduce)()
    assert found.values.shape[0] == sum(rank + 1 for rank in range(hvd.size()))
    share = hvd.size() if op == hvd.Average else 1
    tf.debugging.assert_near(tf.convert_to_tensor(found), dense_sum_of_rows() / share)


@pytest.mark.parametrize("dtype", [tf.uint8, tf.int32, tf.int64])
@pytest.mark.parametrize("is_function", [False, True])
def test_averages_of_integer_rows_keep_their_fractions(dtype, is_function):
    own = tf.IndexedSlices(tf.constant([[3], [1]], dtype), tf.constant([0, 1]))

    def reduce():
        alone = hvd.allreduce(own, op=hvd.Average)
        dense, grouped = hvd.grouped_allreduce([tf.constant([4.0]), own], op=hvd.Average)
        return alone.values, dense, grouped.values

    alone, dense, grouped = (tf.function(reduce) if is_function else reduce)()
    expected = [[3 / hvd.size()], [1 / hvd.size()]] * hvd.size()
    assert dense.numpy().tolist() == [4.0]
    for found in (alone, grouped):
        assert found.dtype.is_floating
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert hvd.allreduce(own, op=hvd.Sum).values.dtype == dtype


@pytest.mark.parametrize("name", [None, "mixed"])
def test_group_of_dense_and_rows(name):
    tensors = [tf.ones([2]), rows_of(hvd.rank()), tf.ones([3], tf.int32), rows_of(hvd.rank())]
    found = hvd.grouped_allreduce(tensors, op=hvd.Sum, name=name)
    assert [isinstance(one, tf.IndexedSlices) for one in found] == [False, True, False, True]
    assert found[0].numpy().tolist() == [hvd.size()] * 2
    assert found[2].numpy().tolist() == [hvd.size()] * 3
    for rows in (found[1], found[3]):
        tf.debugging.assert_near(tf.convert_to_tensor(rows), dense_sum_of_rows())


@pytest.mark.parametrize(
    "call",
    [
        lambda tensor, **kw: hvd.allreduce(tensor, **kw),
        lambda tensor, **kw: hvd.grouped_allreduce([tensor], **kw)[0],
        lambda tensor, **kw: hvd.allgather(hvd.reducescatter(tensor, **kw)),
        lambda tensor, **kw: hvd.allgather(hvd.grouped_reducescatter([tensor], **kw)[0]),
    ],
    ids=["allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter"],
)
def test_compression_and_factors(call):
    tensor = tf.range(6.0) * (hvd.rank() + 1)
    found = call(
        tensor,
        op=hvd.Sum,
        compression=hvd.Compression.fp16,
        prescale_factor=2.0,
        postscale_factor=0.25,
        device_dense="/cpu:0",
    )
    assert found.dtype == tf.float32
    total = sum(rank + 1 for rank in range(hvd.size()))
    assert found.numpy().tolist() == (tf.range(6.0) * total / 2).numpy().tolist()


def test_alltoall_without_and_with_splits():
    size, rank = hvd.size(), hvd.rank()
    tensor = tf.repeat(tf.range(size), 2) + 100 * rank
    expected = [100 * other + rank for other in range(size) for _ in range(2)]
    assert hvd.alltoall(tensor).numpy().tolist() == expected
    output, received = hvd.alltoall(tensor, splits=[2] * size)
    assert output.numpy().tolist() == expected
    assert received.numpy().tolist() == [2] * size


def test_what_others_call_sums_by_default(mode):
    """Programs divide by ``size()`` behind these."""
    own = np.full([2 * hvd.size(), 2], hvd.rank() + 1.0, "f4")
    total = sum(range(1, hvd.size() + 1))

    def body(tensors):
        return [
            hvd._allreduce(tensors[0]),
            *hvd.mpi_ops._grouped_allreduce(tensors),
            hvd.mpi_ops._reducescatter(tensors[0]),
            *hvd.mpi_ops._grouped_reducescatter(tensors),
        ]

    for found in mode(body, [own]):
        assert (found == total).all()
    (averaged,) = mode(lambda t: hvd.mpi_ops._allreduce(t[0], "mean", hvd.Average), [own])
    np.testing.assert_allclose(averaged, total / hvd.size())


@pytest.mark.parametrize("names", [{}, {"use_generic_names": True}])
@pytest.mark.parametrize("is_function", [False, True])
def test_gradients_as_optimizers_of_others_reduce_them(names, is_function):
    options = ("grads", "", "", hvd.Compression.none, False, hvd.Sum, 1.0, None)
    reduce = hvd._make_allreduce_grads_fn(*options)
    variables = [tf.Variable(tf.zeros(2)), tf.Variable(0.0)]

    def step():
        own = [tf.ones(2) * (hvd.rank() + 1.0), None]
        assert reduce(own, variables, **names)[1] is None
        return [reduce(own, variables, **names)[0], reduce(own[:1])[0]]

    total = sum(range(1, hvd.size() + 1))
    for found in (tf.function(step) if is_function else step)():
        assert found.numpy().tolist() == [total] * 2
