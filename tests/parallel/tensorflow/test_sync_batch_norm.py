"""SyncBatchNormalization: the statistics and gradients of the joint batch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd


def batch_of(rank: int, shape):
    """Far from zero, where differences of squares lose digits."""
    generator = np.random.default_rng(rank)
    return (generator.standard_normal(shape) * (rank + 1) + 100).astype(np.float32)


def step(layer, batch, factors):
    with tf.GradientTape() as tape:
        batch = tf.convert_to_tensor(batch)
        tape.watch(batch)
        output = layer(batch, training=True)
        loss = tf.reduce_sum(output * factors)
    return output, tape.gradient(loss, [batch, *layer.trainable_weights])


@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((6, 3), -1), ((2, 4, 4, 3), -1), ((2, 3, 5), 1)])
def test_the_joint_batch(shape, axis, is_function):
    size, rank = hvd.size(), hvd.rank()
    joint = np.concatenate([batch_of(other, shape) for other in range(size)])
    factors = np.linspace(-1, 1, joint.size, dtype=np.float32).reshape(joint.shape)
    own = slice(rank * shape[0], (rank + 1) * shape[0])
    sync = hvd.SyncBatchNormalization(axis=axis)
    plain = tf.keras.layers.BatchNormalization(axis=axis)
    sync.build(shape)
    plain.build(shape)
    run = tf.function(step) if is_function else step
    output, (of_input, *of_weights) = run(sync, joint[own], factors[own])
    expected, (of_joint, *of_plain) = step(plain, joint, factors)
    np.testing.assert_allclose(output, expected[own], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(sync.moving_mean, plain.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(sync.moving_variance, plain.moving_variance, rtol=1e-3)
    # Averages of gradients travel back, as a mean loss wants them.
    np.testing.assert_allclose(of_input, of_joint[own], rtol=2e-2, atol=2e-3)
    for ours, theirs in zip(of_weights, of_plain, strict=True):
        summed = hvd.allreduce(ours, op=hvd.Sum)
        np.testing.assert_allclose(summed, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(not hasattr(tf.keras, "ops"), reason="masks are given as to Keras 3")
@pytest.mark.parametrize("is_masked", [False, True])
def test_elements_are_counted(is_masked):
    """Ranks have other numbers of rows, or of rows that the mask leaves."""
    counts = [other + 1 for other in range(hvd.size())]
    batches = [batch_of(other, (count, 2, 3)) for other, count in enumerate(counts)]
    masks = [np.arange(2 * count).reshape(count, 2) <= count for count in counts]
    sync, plain = hvd.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()

    def run(layer, batch, mask):
        given = {"mask": tf.constant(mask)} if is_masked else {}
        return layer(tf.constant(batch), training=True, **given)

    found = run(sync, batches[hvd.rank()], masks[hvd.rank()])
    expected = run(plain, np.concatenate(batches), np.concatenate(masks))
    begin = sum(counts[: hvd.rank()])
    own = expected[begin : begin + counts[hvd.rank()]]
    np.testing.assert_allclose(found, own, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(sync.moving_mean, plain.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(sync.moving_variance, plain.moving_variance, rtol=1e-3)


@pytest.mark.skipif("hvd.size() < 2", reason="needs a rank that has rows")
def test_a_rank_without_rows():
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    rows = batch_of(0, (4 if hvd.rank() == 0 else 0, 3))
    layer(tf.constant(rows), training=True)
    np.testing.assert_allclose(layer.moving_mean, batch_of(0, (4, 3)).mean(0), rtol=1e-5)


def test_evaluation_needs_nobody():
    layer = hvd.SyncBatchNormalization()
    layer.build((None, 3))
    if hvd.rank() == 0:
        output = layer(tf.ones([2, 3]), training=False)
        np.testing.assert_allclose(output, np.ones((2, 3)), rtol=1e-2)


def test_a_model_is_fitted_alike():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((3,)),
            hvd.SyncBatchNormalization(),
            tf.keras.layers.Dense(4),
            hvd.SyncBatchNormalization(),
            tf.keras.layers.Dense(1),
        ]
    )
    hvd.broadcast_variables(model.variables, 0)
    weights = model.trainable_variables

    @tf.function
    def train(batch):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(model(batch, training=True) - 1.0))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign(weight - 0.05 * gradient)

    for _ in range(3):
        train(tf.constant(batch_of(hvd.rank(), (4, 3))))
    own = [np.asarray(value).tobytes() for value in model.get_weights()]
    assert hvd.allgather_object(own) == [own] * hvd.size()


@pytest.mark.parametrize("fused", [True, None])
def test_fused(fused):
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=fused)


def test_config_makes_an_equal_layer():
    layer = hvd.SyncBatchNormalization(momentum=0.5, name="norm")
    again = hvd.SyncBatchNormalization.from_config(layer.get_config())
    assert (again.momentum, again.name) == (0.5, "norm")
