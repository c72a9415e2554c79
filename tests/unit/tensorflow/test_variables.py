"""Names of operations on variables: equal on all ranks, different within a graph."""

from __future__ import annotations

import pytest
import tensorflow as tf

from horovod.tensorflow.variables import (
    as_tf_variable,
    is_variable,
    key_of,
    operation_names,
    unique_scope,
)


def test_names_have_position_and_last_part():
    first = tf.Variable(1.0, name="model_3/dense_1/kernel")
    second = tf.Variable(1.0, name="bias_2")
    names = operation_names("scope", [first, second, first, tf.constant(1.0)])
    assert names == ["scope/0.kernel", "scope/1.bias", "scope/2.kernel", "scope/3.tensor"]


def test_running_numbers_of_layers_do_not_matter():
    """Neither in a layer's variables nor in what an optimizer calls its own for them."""

    def make():
        layer = tf.keras.layers.Dense(2)
        layer.build((None, 3))
        optimizer = tf.keras.optimizers.Adam()
        optimizer.build(layer.trainable_weights)
        found = optimizer.variables
        return [*layer.weights, *(found() if callable(found) else found)]

    names = operation_names("s", make())
    assert names == operation_names("s", make())
    assert len(names) > 6


def test_keras_variables():
    layer = tf.keras.layers.Dense(2)
    layer.build((None, 3))
    for variable in layer.weights:
        assert is_variable(variable)
        assert isinstance(as_tf_variable(variable), tf.Variable)
        assert key_of(variable) == key_of(as_tf_variable(variable))
    assert len({key_of(variable) for variable in layer.weights}) == 2


@pytest.mark.parametrize("value", [1.0, "kernel", tf.constant(1.0), None, [tf.Variable(1.0)]])
def test_no_variables(value):
    assert not is_variable(value)


def test_scopes_are_unique_in_a_function():
    found = []

    @tf.function
    def step(condition):
        found.append(unique_scope("tape"))

        def branch():
            found.append(unique_scope("tape"))
            return tf.constant(1)

        with tf.name_scope("inner"):
            found.append(unique_scope("tape"))
        return tf.cond(condition, branch, branch)

    step(tf.constant(True))
    assert found == ["tape", "tape_1", "tape_2", "tape_3"]


def test_scopes_are_constant_eagerly():
    assert [unique_scope("tape"), unique_scope("tape")] == ["tape", "tape"]
