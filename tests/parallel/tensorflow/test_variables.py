"""``broadcast_``: variables of several kinds and dtypes, in place, in three modes."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.tensorflow as hvd  # noqa: E402

v1 = tf.compat.v1
DTYPES = ["u1", "i1", "i4", "i8", "f2", "f4", "f8", "?"]


def initial():
    return [np.full((2, i), hvd.rank() + 1).astype(dtype) for i, dtype in enumerate(DTYPES)]


def wanted(root):
    return [np.full((2, i), root + 1).astype(dtype) for i, dtype in enumerate(DTYPES)]


def assert_equal(variables, arrays):
    for variable, array in zip(variables, arrays, strict=True):
        np.testing.assert_array_equal(variable, array)


def test_eagerly(process_sets):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        for root in process_set.ranks:
            variables = [tf.Variable(array) for array in initial()]
            returned = hvd.broadcast_(variables, root, "all", process_set)
            assert all(a is b for a, b in zip(returned, variables, strict=True))
            assert_equal(variables, wanted(root))


def test_in_a_function():
    root = hvd.size() - 1
    variables = [tf.Variable(array) for array in initial()]

    @tf.function
    def distribute():
        hvd.broadcast_(variables, root)
        return tf.reduce_sum(variables[5])  # sees what was assigned

    assert distribute().numpy() == (root + 1) * 10
    assert_equal(variables, wanted(root))


@pytest.mark.parametrize("use_resource", [True, False])
def test_in_a_session(use_resource):
    root = hvd.size() - 1
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable(f"v{i}", initializer=array, use_resource=use_resource)
            for i, array in enumerate(initial())
        ]
        distribute = tf.group(*hvd.broadcast_(variables, root))
        session.run(v1.global_variables_initializer())
        session.run(distribute)
        assert_equal(session.run(variables), wanted(root))


def test_both_kinds_at_once():
    with tf.Graph().as_default():
        reference = v1.get_variable("a", [2], use_resource=False)
        resource = v1.get_variable("b", [2], use_resource=True)
        with pytest.raises(ValueError, match="found both"):
            hvd.broadcast_([reference, resource], 0)


def test_no_variables():
    assert hvd.broadcast_([], 0) == []
