"""DistributedGradientTape: the gradients of all ranks, as one process with the joint batch has."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd


def batch_of(rank: int, step: int = 0):
    generator = np.random.default_rng(1000 * step + rank)
    return generator.standard_normal((4, 3)).astype(np.float32)


def joint_batch(ranks, step: int = 0):
    return np.concatenate([batch_of(rank, step) for rank in ranks])


def make_weights():
    generator = np.random.default_rng(7)
    shapes = [(3, 4), (4,), (4, 2), (2,)]
    return [tf.Variable(generator.standard_normal(shape), dtype=tf.float32) for shape in shapes]


def loss_of(weights, batch):
    hidden = tf.tanh(batch @ weights[0] + weights[1])
    return tf.reduce_mean(tf.square(hidden @ weights[2] + weights[3]))


def gradients(weights, batch, wrap=lambda tape: tape):
    with wrap(tf.GradientTape()) as tape:
        loss = loss_of(weights, batch)
    return tape.gradient(loss, weights)


OPTIONS = [
    {},
    {"op": hvd.Sum},
    {"groups": 2},
    {"gradient_predivide_factor": 2.0},
    {"compression": hvd.Compression.fp16},
    {"device_dense": "/cpu:0"},
]


@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_gradients_of_the_joint_batch(options, is_function):
    weights = make_weights()
    expected = gradients(weights, joint_batch(range(hvd.size())))
    factor = hvd.size() if options.get("op") == hvd.Sum else 1

    def step(batch):
        return gradients(weights, batch, lambda tape: hvd.DistributedGradientTape(tape, **options))

    found = (tf.function(step) if is_function else step)(batch_of(hvd.rank()))
    tolerance = 2e-3 if "compression" in options else 1e-5
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs * factor, rtol=tolerance, atol=tolerance)
    assert_same_everywhere(found)


def assert_same_everywhere(tensors) -> None:
    own = [tf.convert_to_tensor(tensor).numpy().tobytes() for tensor in tensors]
    assert hvd.allgather_object(own) == [own] * hvd.size()


@pytest.mark.parametrize("is_function", [False, True])
def test_training_equals_one_process(is_function):
    weights, alone = make_weights(), make_weights()
    if hvd.rank() != 0:
        for weight in weights:
            weight.assign(weight + 1)
    hvd.broadcast_variables(weights, 0)

    def step(batch):
        found = gradients(weights, batch, hvd.DistributedGradientTape)
        for weight, gradient in zip(weights, found, strict=True):
            weight.assign_sub(0.1 * gradient)

    step = tf.function(step) if is_function else step
    for number in range(5):
        step(batch_of(hvd.rank(), number))
        joint = joint_batch(range(hvd.size()), number)
        for weight, gradient in zip(alone, gradients(alone, joint), strict=True):
            weight.assign_sub(0.1 * gradient)
    assert_same_everywhere(weights)
    for ours, theirs in zip(weights, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_keras_models_of_which_one_rank_has_more():
    """Running numbers of layers differ between ranks then."""
    if hvd.rank() == 0:
        tf.keras.layers.Dense(1).build((None, 1))
    model = tf.keras.Sequential([tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
    model.build((None, 3))
    hvd.broadcast_variables(model.variables, 0)

    @tf.function
    def step(batch):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(model(batch)))
        return tape.gradient(loss, model.trainable_variables)

    found = step(batch_of(hvd.rank()))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(joint_batch(range(hvd.size())))))
    for ours, theirs in zip(found, tape.gradient(loss, model.trainable_variables), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"sparse_as_dense": True}, {"groups": 1}], ids=str)
def test_rows(options):
    table = tf.Variable(tf.ones([5, 2]))
    bias = tf.Variable([1.0])

    @tf.function
    def step(indices):
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = tf.reduce_sum(tf.gather(table, indices)) * tf.reduce_sum(bias)
        return tape.gradient(loss, [table, bias])

    found, _ = step(tf.range(hvd.rank() + 1))
    is_sparse = "sparse_as_dense" not in options or hvd.size() == 1
    assert isinstance(found, tf.IndexedSlices) == is_sparse
    counts = [sum(rank >= row for rank in range(hvd.size())) for row in range(5)]
    expected = [[count / hvd.size()] * 2 for count in counts]
    np.testing.assert_allclose(tf.convert_to_tensor(found), expected, rtol=1e-6)


def test_two_tapes_in_one_function():
    """As in a GAN; and a second trace."""
    first, second = tf.Variable([1.0]), tf.Variable([2.0, 2.0])

    @tf.function
    def step(factor):
        tapes = [hvd.DistributedGradientTape(tf.GradientTape()) for _ in range(2)]
        with tapes[0], tapes[1]:
            loss = tf.reduce_sum(first * first) + tf.reduce_sum(second) * tf.reduce_sum(factor)
        return tapes[1].gradient(loss, second), tapes[0].gradient(loss, first)

    for shape in (1, 1, 3):
        there, here = step(tf.ones([shape]))
        assert here.numpy().tolist() == [2.0]
        assert there.numpy().tolist() == [shape] * 2


def test_one_rank_retraces():
    weight = tf.Variable([1.0, 1.0])

    @tf.function
    def step(batch):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weight) * tf.reduce_sum(batch)
        return tape.gradient(loss, weight)

    for _ in range(3):
        batch = tf.ones([1 + hvd.rank()])
        expected = sum(1.0 + rank for rank in range(hvd.size())) / hvd.size()
        np.testing.assert_allclose(step(batch), [expected] * 2, rtol=1e-6)
        step(tf.ones([7]))


def test_process_sets(process_sets):
    for process_set in process_sets:
        weights = make_weights()
        found = gradients(
            weights,
            batch_of(hvd.rank()),
            lambda tape, chosen=process_set: hvd.DistributedGradientTape(tape, process_set=chosen),
        )
        ranks = process_set.ranks if process_set.included() else [hvd.rank()]
        expected = gradients(weights, joint_batch(ranks))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_local_sources():
    weights = make_weights()
    own = gradients(weights, batch_of(hvd.rank()))
    joint = gradients(weights, joint_batch(range(hvd.size())))
    tape = hvd.DistributedGradientTape(tf.GradientTape(persistent=True))
    tape.register_local_source(weights[1])
    with tape:
        loss = loss_of(weights, batch_of(hvd.rank()))
    expected = [joint[0], own[1] / hvd.size(), joint[2], joint[3]]
    for ours, theirs in zip(tape.gradient(loss, weights), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    local, reduced = tape.get_local_and_global_gradients(loss, weights)
    assert (len(local), len(reduced)) == (1, 3)
    np.testing.assert_allclose(local[0], own[1] / hvd.size(), rtol=1e-5)


def test_adasum_of_equal_gradients():
    weight = tf.Variable([1.0, 2.0])
    with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum) as tape:
        loss = tf.reduce_sum(weight * weight)
    np.testing.assert_allclose(tape.gradient(loss, weight), [2.0, 4.0], rtol=1e-6)


def test_adasum_of_rows():
    if hvd.size() == 1:
        pytest.skip("one rank has nothing to reduce")
    table = tf.Variable(tf.ones([3, 1]))
    with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum) as tape:
        loss = tf.reduce_sum(tf.gather(table, [0]))
    with pytest.raises(NotImplementedError, match="sparse"):
        tape.gradient(loss, table)


def test_ranks_disagree():
    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
    weight = tf.Variable(tf.ones([1 + hvd.rank()]))
    for wrap in (lambda step: step, tf.function):
        with pytest.raises(tf.errors.OpError, match="shapes must match"):
            wrap(lambda: disagree(weight))()
    assert hvd.allreduce(tf.constant(1.0), op=hvd.Sum).numpy() == hvd.size()


def disagree(weight):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(weight)
    return tape.gradient(loss, weight)


def test_a_graph_that_outlives_worlds(monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    weights = make_weights()
    expected = gradients(weights, joint_batch(range(hvd.size())))

    @tf.function
    def step(batch):
        return gradients(weights, batch, hvd.DistributedGradientTape)

    for _ in range(2):
        for ours, theirs in zip(step(batch_of(hvd.rank())), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        hvd.shutdown()
        hvd.init()


@pytest.mark.parametrize("groups", [None, 2])
def test_a_source_may_be_there_twice(groups):
    """As in the variables of two models that share a layer."""
    shared, other = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    with hvd.DistributedGradientTape(tf.GradientTape(), groups=groups) as tape:
        loss = tf.reduce_sum(shared) * other * (hvd.rank() + 1.0)
    first, of_other, second = tape.gradient(loss, [shared, other, shared])
    mean = (hvd.size() + 1) / 2
    assert first.numpy().tolist() == second.numpy().tolist() == [3 * mean] * 2
    assert float(of_other) == 3 * mean
