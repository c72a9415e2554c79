"""Adding up passes, in each way that TensorFlow runs; what is reduced is doubled here."""

from __future__ import annotations

import pytest
import tensorflow as tf

from horovod.tensorflow.gradient_aggregation import GradientAggregation


def double(gradients, variables):
    assert len(gradients) == len(variables)
    return [gradient * 2 for gradient in gradients]


class Eager:
    """Runs a step as it is called."""

    def run(self, step, inputs):
        return [step(value).numpy().tolist() for value in inputs]


class Function(Eager):
    """Runs a step as a function that is traced twice."""

    def run(self, step, inputs):
        function = tf.function(step)
        shapes = [tf.constant(value) for value in inputs]
        return [function(value).numpy().tolist() for value in shapes]


class Session(Eager):
    """Builds a step once, and runs it in a session."""

    def run(self, step, inputs):
        with tf.Graph().as_default():
            value = tf.compat.v1.placeholder(tf.float32, [])
            found = step(value)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(tf.compat.v1.local_variables_initializer())
                return [session.run(found, {value: one}).tolist() for one in inputs]


class OldSession(Session):
    """The same with the control flow and variables of TensorFlow 1."""

    def run(self, step, inputs):
        tf.compat.v1.disable_control_flow_v2()
        tf.compat.v1.disable_resource_variables()
        try:
            return super().run(step, inputs)
        finally:
            tf.compat.v1.enable_control_flow_v2()
            tf.compat.v1.enable_resource_variables()


MODES = [Eager(), Function(), Session(), OldSession()]


def names(mode):
    return type(mode).__name__


class Training:
    """One weight from which reduced gradients are subtracted; a counter of passes."""

    def __init__(self, **options) -> None:
        self.helper = GradientAggregation(2, double, **options)
        self.variables = None

    def step(self, value):
        if self.variables is None:
            with tf.init_scope():
                self.variables = [
                    tf.compat.v1.get_variable("weight", initializer=[100.0])
                    if not tf.executing_eagerly()
                    else tf.Variable([100.0]),
                    tf.Variable(0.0),
                ]
        weight, passes = self.variables
        gradients = [tf.stack([value]), None]
        reduced, none = self.helper.compute_gradients(gradients, self.variables)
        assert none is None

        def apply():
            return tf.group(weight.assign(weight - reduced), passes.assign(passes + 1))

        def skip():
            return passes.assign(passes + 1)

        done = self.helper.apply_gradients([(reduced, weight), (None, passes)], apply, skip)
        with tf.control_dependencies([] if done is None else [done]):
            return tf.concat([tf.identity(weight), [tf.identity(passes)]], 0)


@pytest.mark.parametrize("mode", MODES, ids=names)
@pytest.mark.parametrize("average", [False, True])
def test_every_second_pass_reduces_and_applies(mode, average):
    training = Training(average_aggregated_gradients=average)
    found = mode.run(training.step, [1.0, 2.0, 3.0, 5.0, 7.0])
    share = 1.0 if average else 2.0
    after = [100.0, 100 - 3 * share, 100 - 3 * share, 100 - 11 * share, 100 - 11 * share]
    assert found == [[weight, pass_ + 1.0] for pass_, weight in enumerate(after)]


def test_a_new_trace_goes_on_with_the_same_sums():
    training = Training()

    @tf.function(reduce_retracing=False)
    def step(value, _):
        return training.step(value)

    step(tf.constant(1.0), 1)
    assert step(tf.constant(2.0), 2).numpy().tolist() == [94.0, 2.0]


def test_each_list_of_variables_counts_its_own_passes():
    helper = GradientAggregation(2, double)
    first, second = tf.Variable(0.0), tf.Variable(0.0)
    one = tf.constant(1.0)
    assert helper.compute_gradients([one], [first])[0].numpy() == 0
    assert helper.compute_gradients([one], [second])[0].numpy() == 0
    assert helper.compute_gradients([one], [first])[0].numpy() == 4


def test_rows_need_sparse_as_dense():
    variable = tf.Variable(tf.zeros([3, 1]))
    rows = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([2]), tf.constant([3, 1]))
    with pytest.raises(ValueError, match="use sparse_as_dense=True"):
        GradientAggregation(2, double).compute_gradients([rows], [variable])
    helper = GradientAggregation(2, double, sparse_as_dense=True)
    helper.compute_gradients([rows], [variable])
    found = helper.compute_gradients([rows], [variable])[0]
    assert found.numpy().tolist() == [[0], [0], [4]]


@pytest.mark.parametrize("passes", [0, -1])
def test_at_least_one_pass(passes):
    with pytest.raises(ValueError, match="at least 1"):
        GradientAggregation(passes, double)


def test_unknown_gradients_are_applied():
    helper = GradientAggregation(2, double)
    called = []
    helper.apply_gradients([(tf.constant(1.0), tf.Variable(1.0))], lambda: called.append(1))
    assert called == [1]


def test_gradients_that_come_and_go_are_refused():
    """Each change would begin a new step, and none would end."""
    aggregation = GradientAggregation(2, double)
    first, second, one = tf.Variable(0.0), tf.Variable(0.0), tf.constant(1.0)
    aggregation.compute_gradients([one, one], [first, second])
    with pytest.raises(ValueError, match="same variables in all passes of a step; pass 2 has"):
        aggregation.compute_gradients([one, None], [first, second])
    aggregation.compute_gradients([one, one], [first, second])
    found, none = aggregation.compute_gradients([one, None], [first, second])
    assert (float(found), none) == (0.0, None)
    aggregation.reset()
    aggregation.compute_gradients([one, one], [first, second])
