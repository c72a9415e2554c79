"""State distribution in a world of one: modes, dtypes, misuse."""

from __future__ import annotations

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

pytestmark = pytest.mark.usefixtures("world")
v1 = tf.compat.v1


def test_global_variables_need_a_graph():
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.BroadcastGlobalVariablesHook(0).begin()


@pytest.mark.parametrize("inplace", [False, True])
def test_modes(inplace):
    variable = tf.Variable([1.0, 2.0])
    assert hvd.broadcast_variables([variable], 0, inplace=inplace) is None

    @tf.function
    def function():
        operation = hvd.broadcast_variables([variable], 0, inplace=inplace)
        assert isinstance(operation, tf.Operation)

    function()
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("weight", initializer=[1.0, 2.0])
        session.run(v1.global_variables_initializer())
        operation = hvd.broadcast_variables(v1.global_variables(), 0, inplace=inplace)
        assert isinstance(operation, tf.Operation)
        session.run(operation)


@pytest.mark.parametrize(
    "dtype", [tf.uint32, tf.uint64, tf.complex64, tf.bfloat16, tf.bool, tf.float16, tf.int8]
)
def test_every_dtype(dtype):
    variable = tf.Variable(tf.cast([[1, 0], [1, 1]], dtype))
    hvd.broadcast_variables([variable], 0)
    assert tf.cast(variable, tf.int32).numpy().tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize("given", [tf.Variable(1.0), tf.Variable([1.0]), 3])
def test_no_list_of_variables(given):
    with pytest.raises(ValueError, match=r"expected a list of variables, found .*; give \["):
        hvd.broadcast_variables(given, 0)


def test_nothing():
    assert hvd.broadcast_variables([], 0) is None
    with tf.Graph().as_default():
        assert isinstance(hvd.broadcast_variables([], 0), tf.Operation)


def test_hook_makes_one_operation_for_each_graph():
    hook = hvd.BroadcastGlobalVariablesHook(0, device="/cpu:0")
    made = []
    for _ in range(2):
        with tf.Graph().as_default():
            v1.get_variable("weight", initializer=[1.0])
            for _ in range(2):
                hook.begin()
                made.append(hook.bcast_op)
    assert made[0] is made[1]
    assert made[2] is made[3]
    assert made[0] is not made[2]


def test_objects_need_no_session():
    with tf.Graph().as_default():
        assert hvd.broadcast_object({"epoch": 3}, 0) == {"epoch": 3}
        assert hvd.broadcast_object_fn(0, session=None, name="again")([1]) == [1]
        assert hvd.allgather_object("mine") == ["mine"]


@pytest.mark.parametrize(
    "arguments",
    [{"op": hvd.Adasum}, {"op": hvd.Max}, {"prescale_factor": 2.0}, {"postscale_factor": 0.5}],
    ids=str,
)
@pytest.mark.parametrize("grouped", [False, True])
def test_rows_that_cannot_be_reduced(arguments, grouped):
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    call, tensors = (
        (hvd.grouped_allreduce, [tf.ones(2), rows]) if grouped else (hvd.allreduce, rows)
    )
    with pytest.raises(NotImplementedError):
        call(tensors, **arguments)


@pytest.mark.parametrize("call", [hvd.grouped_allreduce, hvd.grouped_reducescatter])
def test_an_empty_group(call):
    empty: list = []
    assert call(empty) is empty


def test_average_is_deprecated():
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        hvd.allreduce(tf.ones(2), average=True)
    with pytest.raises(ValueError, match="not both"):
        hvd.allreduce(tf.ones(2), average=True, op=hvd.Sum)


def test_alltoall_returns_splits_only_when_given():
    assert hvd.alltoall(tf.ones([2])).shape == [2]
    output, received = hvd.alltoall(tf.ones([2]), splits=[1])
    assert (output.shape, received.numpy().tolist()) == ([1], [1])
