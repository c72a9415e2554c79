"""DistributedGradientTape in a world of one, or of two equal ranks."""

from __future__ import annotations

import traceback

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd


class UserTape(tf.GradientTape):
    """A tape class of a user's own."""

    def gradient(self, *args, **kwargs):
        return tf.nest.map_structure(lambda one: one * 10, super().gradient(*args, **kwargs))


@pytest.fixture
def weight():
    return tf.Variable([1.0, 2.0], name="weight")


@pytest.mark.parametrize("kind", [tf.GradientTape, UserTape])
def test_class_is_named_and_derived_alike(world, weight, kind):
    with hvd.DistributedGradientTape(kind(persistent=True)) as tape:
        loss = tf.reduce_sum(weight * weight)
    assert type(tape) is not kind
    assert isinstance(tape, kind)
    assert (type(tape).__name__, type(tape).__module__) == (kind.__name__, kind.__module__)
    factor = 10 if kind is UserTape else 1
    for _ in range(2):
        assert tape.gradient(loss, weight).numpy().tolist() == [2.0 * factor, 4.0 * factor]


def test_without_init_no_gradient_stays_on_its_rank(weight):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = weight[0] * 3
    with pytest.raises(ValueError, match="has not been initialized"):
        tape.gradient(loss, weight)


def test_wrapped_before_while_and_after_recording(world, weight):
    with hvd.DistributedGradientTape(tf.GradientTape()) as before:
        loss = weight[0] * 3
    assert before.gradient(loss, weight) is not None
    with tf.GradientTape() as given:
        during = hvd.DistributedGradientTape(given)
        loss = weight[0] * 3
        with during.stop_recording():
            weight.assign_add([0.0, 0.0])
    assert tf.convert_to_tensor(during.gradient(loss, weight)).numpy().tolist() == [3.0, 0.0]
    with pytest.raises(RuntimeError, match="non-persistent"):
        given.gradient(loss, weight)
    with tf.GradientTape() as given:
        loss = weight[0] * 3
    after = hvd.DistributedGradientTape(given)
    assert [variable is weight for variable in after.watched_variables()] == [True]
    assert after.gradient(loss, weight) is not None


def test_one_recording_wrapped_twice(ops, weight):
    with tf.GradientTape(persistent=True) as given:
        loss = tf.reduce_sum(weight)
    summing = hvd.DistributedGradientTape(given, op=hvd.Sum)
    averaging = hvd.DistributedGradientTape(given)
    assert summing.gradient(loss, weight).numpy().tolist() == [2.0, 2.0]
    assert averaging.gradient(loss, weight).numpy().tolist() == [1.0, 1.0]


def test_nested_sources_and_none(ops, weight):
    other, unused = tf.Variable(3.0, name="other"), tf.Variable(1.0)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(weight) * other
    found = tape.gradient(loss, {"b": [weight, unused], "a": (other,)})
    assert found["b"][1] is None
    assert found["b"][0].numpy().tolist() == [3.0, 3.0]
    assert found["a"][0].numpy() == 3.0
    assert ops.names == [["DistributedGradientTape/0.other", "DistributedGradientTape/1.weight"]]


def test_generic_names(ops, weight):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(weight)
    tape.gradient(loss, [weight], use_generic_names=True)
    assert ops.names == [["grad_0"]]


def test_output_gradients_and_unconnected_ones(ops, weight):
    unused = tf.Variable(1.0)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        product = weight * 2
    found = tape.gradient(
        product,
        [weight, unused],
        output_gradients=tf.constant([1.0, 5.0]),
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    assert [one.numpy().tolist() for one in found] == [[2.0, 10.0], 0.0]


def test_local_sources(ops, weight):
    other = tf.Variable(3.0, name="other")
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True), op=hvd.Sum) as tape:
        loss = tf.reduce_sum(weight) * other
    tape.register_local_source(other)
    assert [one.numpy().tolist() for one in tape.gradient(loss, [weight, other])] == [
        [6.0, 6.0],
        1.5,
    ]
    local, reduced = tape.get_local_and_global_gradients(loss, [weight, other])
    assert [one.numpy() for one in local] == [1.5]
    assert [one.numpy().tolist() for one in reduced] == [[6.0, 6.0]]


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_partial_tape_leaves_layers_alone(ops, scale, built):
    ones = {"kernel_initializer": "ones", "use_bias": False}
    mine, shared = (tf.keras.layers.Dense(1, **ones) for _ in range(2))
    if built:
        mine.build((None, 2))
    tape = hvd.PartialDistributedGradientTape(
        tf.GradientTape(), op=hvd.Sum, local_layers=mine, scale_local_gradients=scale
    )
    with tape:
        loss = tf.reduce_sum(mine(tf.ones([1, 2])) + shared(tf.ones([1, 2])))
    sources = [*mine.trainable_weights, *shared.trainable_weights]
    local, reduced = tape.gradient(loss, sources)
    assert local.numpy().tolist() == [[0.5 if scale else 1.0]] * 2
    assert reduced.numpy().tolist() == [[2.0]] * 2
    assert len(ops.names) == 1


@pytest.mark.parametrize("layers", [1, "dense", [tf.Variable(1.0)], lambda x: x])
def test_partial_tape_wants_layers(layers):
    with pytest.raises(ValueError, match="Keras layer"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layers)


def test_jacobian_is_this_ranks(ops, weight):
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True), op=hvd.Sum) as tape:
        square = weight * weight
    assert tape.jacobian(square, weight).numpy().tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert ops.submissions == []


def test_autograph_translates_the_users_function_only(ops, weight, monkeypatch):
    """Translating ours, too, would take seconds."""
    translated = []

    def run(call, names, tensors):
        frames = traceback.extract_stack()
        translated.extend(frame.name for frame in frames if frame.name.startswith("tf__"))
        return tensors

    monkeypatch.setattr(ops, "run", run)

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weight)
        return tape.gradient(loss, weight)

    step()
    assert translated == ["tf__step"]


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        {"gradient_predivide_factor": 2.0, "op": hvd.Adasum},
        {"groups": 0},
        {"groups": "two"},
        {"groups": [[1.0]]},
        {"op": 99},
    ],
)
@pytest.mark.parametrize("make", [hvd.DistributedGradientTape, hvd.PartialDistributedGradientTape])
def test_bad_arguments(make, options):
    with pytest.raises(ValueError, match=r"groups|predivide|op="):
        make(tf.GradientTape(), **options)


def test_num_groups_is_deprecated():
    with pytest.warns(DeprecationWarning, match="give the number as groups"):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)


def test_no_tape():
    with pytest.raises(ValueError, match=r"expected a tf\.GradientTape"):
        hvd.DistributedGradientTape(tf.Variable(1.0))
