"""Which operations the gradients of a step become; the collectives are a recorder."""

from __future__ import annotations

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.gradient_reduction import Reducer


def reducer(**options):
    defaults = {
        "device_dense": "",
        "device_sparse": "",
        "compression": hvd.Compression.none,
        "sparse_as_dense": False,
        "op": hvd.Average,
        "gradient_predivide_factor": 1.0,
        "groups": None,
        "process_set": hvd.global_process_set,
        "scale_local_gradients": True,
    }
    return Reducer("step", **{**defaults, **options})


@pytest.fixture(scope="module")
def variables():
    return [tf.Variable(tf.zeros([4, 2]), name=name) for name in ("a", "b", "c", "d")]


def rows(*indices: int):
    return tf.IndexedSlices(tf.ones([len(indices), 2]), tf.constant(indices), tf.constant([4, 2]))


def dense(value: float = 1.0):
    return tf.fill([4, 2], value)


def values(gradient) -> list:
    return tf.convert_to_tensor(gradient).numpy().tolist()


def test_dense_gradients_leave_in_one_batch(ops, variables):
    gradients = [dense(1.0), None, dense(3.0), tf.cast(dense(4.0), tf.float64)]
    reduced = reducer()(gradients, variables)
    assert ops.names == [["step/0.a", "step/2.c", "step/3.d"]]
    assert ops.submissions[0].options == (hvd.Average, 1.0, 1.0)
    assert reduced[1] is None
    assert [gradient.dtype for gradient in reduced if gradient is not None] == [
        tf.float32,
        tf.float32,
        tf.float64,
    ]
    assert values(reduced[2]) == values(dense(3.0))


def test_rows_are_gathered(ops, variables):
    reduced = reducer()([rows(1, 3), dense(), None, None], variables)
    assert ops.names == [["step/1.b"], ["step/0.a.values"], ["step/0.a.indices"]]
    assert reduced[0].indices.numpy().tolist() == [1, 3, 1, 3]
    assert values(reduced[0]) == values(rows(1, 3))


def test_sum_of_rows(ops, variables):
    (reduced,) = reducer(op=hvd.Sum)([rows(1)], variables[:1])
    assert values(reduced)[1] == [2.0, 2.0]


def test_rows_as_dense(ops, variables):
    (reduced,) = reducer(sparse_as_dense=True)([rows(2, 2)], variables[:1])
    assert ops.names == [["step/0.a"]]
    assert values(reduced)[2] == [2.0, 2.0]


@pytest.mark.parametrize("op", [hvd.Adasum, hvd.Min, hvd.Product])
def test_rows_by_other_ops(ops, variables, op):
    with pytest.raises(NotImplementedError, match=r"sparse|IndexedSlices"):
        reducer(op=op)([rows(1)], variables[:1])


def test_groups_and_the_rest(ops, variables):
    groups = [[variables[3], variables[0]]]
    gradients = [rows(1), dense(), dense(), dense(7.0)]
    reduced = reducer(groups=groups)(gradients, variables)
    assert [(submission.kind, submission.names) for submission in ops.submissions] == [
        ("group", ["step/3.d.group_0", "step/3.d"]),
        ("group of rows", ["step/3.d.group_0.sparse"]),
        ("allreduce", ["step/1.b", "step/2.c"]),
    ]
    assert values(reduced[0]) == values(rows(1))
    assert values(reduced[3]) == values(dense(7.0))


def test_a_number_of_groups(ops, variables):
    reducer(groups=2)([dense()] * 4, variables)
    assert [submission.kind for submission in ops.submissions] == ["group", "group"]
    assert len({submission.names[0] for submission in ops.submissions}) == 2


def test_predivide_cancels_out(ops, variables):
    (reduced,) = reducer(gradient_predivide_factor=4.0)([dense(8.0)], variables[:1])
    assert ops.submissions[0].options == (hvd.Average, 0.25, 4.0)
    assert values(reduced) == values(dense(8.0))


def test_compression_is_undone(ops, variables):
    reduced = reducer(compression=hvd.Compression.fp16, groups=[[variables[1]]])(
        [dense(0.1), dense(0.5)], variables[:2]
    )
    assert [gradient.dtype for gradient in reduced] == [tf.float32, tf.float32]
    assert values(reduced[0]) == values(tf.cast(tf.cast(dense(0.1), tf.float16), tf.float32))


@pytest.mark.parametrize("scale", [True, False])
def test_local_variables_stay(ops, variables, scale):
    gradients = [dense(4.0), rows(1), dense(4.0)]
    reduce = reducer(scale_local_gradients=scale)
    reduced = reduce(gradients, variables[:3], [variables[0], variables[1]])
    assert ops.names == [["step/2.c"]]
    assert values(reduced[0]) == values(dense(2.0 if scale else 4.0))
    assert values(reduced[1])[1] == ([0.5, 0.5] if scale else [1.0, 1.0])


def test_generic_names(ops, variables):
    reducer(use_generic_names=True)([None, dense(), rows(0)], variables[:3])
    assert ops.names == [["grad_1"], ["grad_2.values"], ["grad_2.indices"]]


def test_names_are_equal_in_each_function_and_unique_in_one(ops, variables):
    reduce = reducer()

    @tf.function
    def twice(gradient):
        reduce([gradient], variables[:1])
        return tf.cond(
            tf.reduce_sum(gradient) > 0,
            lambda: reduce([gradient], variables[:1])[0],
            lambda: gradient,
        )

    for rows_ in (2, 3):  # a second trace
        ops.submissions.clear()
        twice(tf.ones([rows_]))
        assert ops.names == [["step/0.a"], ["cond_true/cond/step_1/0.a"]]


def test_alone_gradients_pass(world, variables):
    gradients = [dense(), rows(1), None]
    assert reducer()(gradients, variables[:3], [variables[0]]) == gradients


def test_nothing_to_reduce(ops, variables):
    assert reducer()([None, None], variables[:2]) == [None, None]
    assert ops.submissions == []


@pytest.mark.parametrize("as_dense", [False, True])
def test_elastic_graphs_decide_when_they_run(elastic, ops, variables, as_dense):
    reduce = reducer(sparse_as_dense=as_dense)

    @tf.function
    def step():
        gradients = [dense(3.0), None, rows(1), dense(4.0)]
        reduced = reduce(gradients, variables, [variables[3]])
        return [tf.convert_to_tensor(one) for one in reduced if one is not None]

    first, sparse, local = step()
    assert (values(first), values(sparse)) == (values(dense(3.0)), values(rows(1)))
    assert values(local) == values(dense(2.0))
    elastic["size"].assign(4)
    assert values(step()[2]) == values(dense(1.0))
    for name, number in (("size", 1), ("included", 0)):
        before = elastic[name].numpy()
        elastic[name].assign(number)
        assert values(step()[2]) == values(dense(4.0))
        elastic[name].assign(before)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "needs op=Average"),
        ({"gradient_predivide_factor": 0.0}, "must be positive"),
        ({"op": 17}, "expected one of"),
        ({"compression": 16}, "must be a Compressor"),
        ({"groups": 0}, "number > 0"),
        ({"process_set": [0]}, "must be a ProcessSet"),
    ],
)
def test_bad_arguments(options, text):
    with pytest.raises(ValueError, match=text):
        reducer(**options)


def test_predivide_on_rocm(monkeypatch):
    monkeypatch.setattr("horovod.core.operations.rocm_built", lambda: True)
    with pytest.raises(ValueError, match="ROCm"):
        reducer(gradient_predivide_factor=2.0)


def test_unregistered_set(world, variables):
    with pytest.raises(ValueError, match="not registered"):
        reducer(process_set=hvd.ProcessSet([0]))([dense()], variables[:1])
