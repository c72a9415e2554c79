"""Training with ``fit`` and others: all ranks end with the weights of a single process."""

import keras
import keras_cases as cases
import numpy as np
import pytest

import horovod.keras as hvd

BATCH = 48  # of all ranks together: divisible by 1 to 4
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}
if not cases.IS_KERAS3:
    OPTIMIZERS["legacy_sgd"] = lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9)
    OPTIMIZERS["legacy_adam"] = lambda: keras.optimizers.legacy.Adam(0.01)


def fit(model, images, labels, batch=None, **options):
    batch = batch or BATCH // hvd.size()
    options = {"epochs": 2, "verbose": 0, "shuffle": False, **options}
    return model.fit(images, labels, batch_size=batch, **options)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_weights_of_one_process_with_the_joint_batch(kind):
    images, labels = cases.digits()
    alone = cases.make_model(OPTIMIZERS[kind](), seed=5)
    fit(alone, images, labels, BATCH)

    together = cases.make_model(hvd.DistributedOptimizer(OPTIMIZERS[kind]()), seed=hvd.rank())
    together.set_weights(cases.make_model(seed=5).get_weights())
    fit(together, *cases.share(BATCH, images, labels))

    assert cases.are_equal_on_all_ranks(cases.values_of(together.weights))
    for found, expected in zip(together.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=5e-4)
    accuracies = [
        model.evaluate(images, labels, verbose=0, return_dict=True)["accuracy"]
        for model in (together, alone)
    ]
    np.testing.assert_allclose(*accuracies, atol=0.01)
    assert accuracies[0] > 0.7


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_broadcast_after_the_first_batch(kind):
    """Weights and slots differ at first, also in models that are built late."""
    images, labels = cases.share(BATCH, *cases.digits(144))
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind]())
    model = cases.make_model(optimizer, seed=hvd.rank(), built=False)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(hvd.size() - 1)
    fit(model, images, labels, callbacks=[callback])
    assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))
    assert cases.are_equal_on_all_ranks(cases.state_of(model.optimizer))
    assert callback.broadcast_done


def test_local_variables_are_not_broadcast():
    images, labels = cases.share(BATCH, *cases.digits(BATCH))
    model = cases.make_model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), seed=hvd.rank())
    kernel, bias = model.layers[0].trainable_weights
    bias.assign(np.full(bias.shape, hvd.rank(), "float32"))
    before = cases.values_of([kernel, bias])
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[kernel])
    callback.register_local_var(bias)
    fit(model, images, labels, epochs=1, callbacks=[callback])
    for found, expected in zip(cases.values_of([kernel, bias]), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert cases.are_equal_on_all_ranks(cases.values_of(model.layers[1].weights))


def test_models_that_differ_are_an_error_on_all_ranks():
    if hvd.size() == 1:
        pytest.skip("needs another rank")
    images, labels = cases.share(BATCH, *cases.digits(BATCH))
    optimizer = keras.optimizers.SGD(0.1)
    model = cases.make_model(optimizer)
    if hvd.rank() == 1:
        model = keras.Sequential([keras.layers.Dense(10)])
        model.compile(optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy())
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    with pytest.raises(ValueError, match="rank 1 has"):
        fit(model, images, labels, epochs=1, callbacks=[callback])


def jit_settings():
    if cases.BACKEND == "torch":  # True takes a minute; see test_compiled_step
        return [False]
    return [False, True]


@pytest.mark.parametrize("jit_compile", jit_settings())
def test_jit_compile(jit_compile, capfd):
    images, labels = cases.share(BATCH, *cases.digits(144))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model = cases.make_model(optimizer, jit_compile=jit_compile)
    fit(model, images, labels, epochs=1)
    assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))
    lines = capfd.readouterr().out.count("jit_compile=True has no effect here")
    falls_back = jit_compile and cases.BACKEND in ("tensorflow", "keras2")
    assert lines == (1 if falls_back and hvd.rank() == 0 else 0)


@pytest.mark.skipif(cases.BACKEND not in ("tensorflow", "keras2"), reason="XLA by TensorFlow")
def test_xla_compiles_the_step(monkeypatch, capfd):
    """The last batch is smaller, so the step is compiled twice."""
    monkeypatch.setenv("HOROVOD_ENABLE_XLA_OPS", "1")
    images, labels = cases.share(BATCH, *cases.digits(144))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model = cases.make_model(optimizer, jit_compile=True)
    fit(model, images, labels, epochs=2)
    assert model.jit_compile
    assert "no effect" not in capfd.readouterr().out
    assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))


# Dynamo looks at the gradients of all objects of a frame.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.skipif(cases.BACKEND != "torch", reason="torch.compile")
def test_compiled_step(monkeypatch):
    """Dynamo traces the step and leaves its graph for the reduction; it makes no machine code."""
    import torch

    compile_step = torch.compile
    monkeypatch.setattr(torch, "compile", lambda step: compile_step(step, backend="eager"))
    images, labels = cases.share(BATCH, *cases.digits(96))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model = cases.make_model(optimizer, jit_compile=True)
    fit(model, images, labels, epochs=1)
    assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))


@pytest.mark.skipif(cases.BACKEND == "torch", reason="not a setting of this backend")
@pytest.mark.skipif(
    cases.IS_KERAS3 and not hasattr(keras.optimizers.Optimizer, "iterations"),
    reason="fit() of the oldest Keras 3 fails where an epoch ends inside of an execution",
)
# Later ones warn there.
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize("passes", [1, 2])
def test_several_steps_per_execution(passes):
    images, labels = cases.share(BATCH, *cases.digits(144))
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.Adam(0.01), backward_passes_per_step=passes
    )
    model = cases.make_model(optimizer, steps_per_execution=4)
    fit(model, images, labels)
    assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))


def test_backward_passes_are_one_step_with_the_joint_batch():
    images, labels = cases.digits(144)
    alone = cases.make_model(keras.optimizers.SGD(0.1, momentum=0.9), seed=5)
    fit(alone, images, labels, BATCH)
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9),
        backward_passes_per_step=2,
        average_aggregated_gradients=True,
    )
    together = cases.make_model(optimizer, seed=5)
    own = BATCH // hvd.size()
    images, labels = cases.share(BATCH, images, labels)
    fit(together, images, labels, own // 2)
    for found, expected in zip(together.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)
    assert int(cases.values_of([optimizer.iterations])[0]) == 2 * 2 * len(labels) // own


@pytest.mark.skipif(cases.BACKEND not in ("tensorflow", "keras2"), reason="TensorFlow's tapes")
@pytest.mark.parametrize("wraps", [False, True], ids=["plain", "wrapped"])
def test_loop_with_a_distributed_tape(wraps):
    """The tape reduces; a wrapped optimizer does not change averages."""
    import tensorflow as tf

    import horovod.tensorflow as tf_hvd

    images, labels = cases.share(BATCH, *cases.digits(BATCH))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer = hvd.DistributedOptimizer(optimizer) if wraps else optimizer
    model, loss = cases.make_model(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        tape = tf_hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    train()
    train()
    alone = cases.make_model(keras.optimizers.SGD(0.1))
    joint_images, joint_labels = cases.digits(BATCH)
    for _ in range(2):
        alone.train_on_batch(joint_images, joint_labels)
    for found, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_train_on_batch():
    images, labels = cases.share(BATCH, *cases.digits(BATCH))
    model = cases.make_model(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    losses = [model.train_on_batch(images, labels, return_dict=True)["loss"] for _ in range(3)]
    assert losses[2] < losses[0]
    assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))


def test_fit_with_defaults():
    """Named losses, no batch size, shuffled, ranks of different data."""
    images, labels = cases.digits(hvd.size() * 100)
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
    model = cases.make_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.RMSprop()), "mse")
    model.fit(images, np.eye(10)[labels], verbose=0)
    assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))


def test_infinite_gradients_are_dropped_on_all_ranks_alike():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = cases.make_model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
        images, labels = cases.share(BATCH, *cases.digits(BATCH))
        if hvd.rank() == hvd.size() - 1:
            images = np.full_like(images, np.inf)
        before = model.get_weights()
        model.train_on_batch(images, labels)
        for found, expected in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(found, expected)
        images, labels = cases.share(BATCH, *cases.digits(BATCH))
        for _ in range(3):
            model.train_on_batch(images, labels)
        assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))
        assert np.abs(model.get_weights()[0] - before[0]).max() > 0
    finally:
        keras.mixed_precision.set_global_policy("float32")


@pytest.mark.skipif(cases.BACKEND not in ("keras2", "tensorflow"), reason="horovod.tensorflow")
@pytest.mark.parametrize("bad_pass", [0, 1])
def test_one_infinite_pass_of_several(bad_pass):
    """Infinite gradients in a pass that is only summed must not make ranks decide differently."""
    from horovod.tensorflow.keras import DistributedOptimizer

    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
        model = cases.make_model(optimizer)
        before = model.get_weights()
        for step in range(6):
            images, labels = cases.share(BATCH, *cases.digits(BATCH))
            if step == bad_pass and hvd.rank() == hvd.size() - 1:
                images = np.full_like(images, np.inf)
            model.train_on_batch(images, labels)
        assert cases.are_equal_on_all_ranks(cases.values_of(model.weights))
        assert np.isfinite(model.get_weights()[0]).all()
        assert np.abs(model.get_weights()[0] - before[0]).max() > 0
    finally:
        keras.mixed_precision.set_global_policy("float32")
