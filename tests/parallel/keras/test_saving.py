"""Models saved with a wrapped optimizer: plain Keras and ``load_model`` read them, with state."""

import keras
import keras_cases as cases
import numpy as np
import pytest

import horovod.keras as hvd
from horovod.numpy import allgather_object


@keras.utils.register_keras_serializable("tests")
class Registered(keras.optimizers.Adam):
    pass


class Unregistered(keras.optimizers.Adam):
    pass


def decaying():
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))


MAKERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "decay": decaying,
    "registered": lambda: Registered(0.01),
    "unregistered": lambda: Unregistered(0.01),
}


def trained(optimizer):
    model = cases.make_model(optimizer)
    images, labels = cases.share(48, *cases.digits(96))
    model.fit(images, labels, batch_size=len(labels) // 2, verbose=0)
    return model


def assert_equal_state(found, expected):
    pairs = zip(cases.state_of(found), cases.state_of(expected), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def test_rank_0_goes_on_with_a_loaded_model_and_the_others_with_new_ones(tmp_path):
    """Their optimizers have no variables before the first step; metrics would make some, too."""
    images, labels = cases.share(48, *cases.digits(96))
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)

    def make():
        model = cases.make_model()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(hvd.DistributedOptimizer(MAKERS["sgd"]()), loss)
        return model

    model = make()
    if hvd.rank() == 0:
        model.optimizer.build(model.trainable_variables)
        model.save(tmp_path / "model.keras")
        model = hvd.load_model(tmp_path / "model.keras")
    model.fit(images, labels, batch_size=24, callbacks=[broadcast], verbose=0)
    states = allgather_object(cases.state_of(model))
    assert all(map(np.array_equal, states[0], states[-1]))


# Keras's own warning about the older format.
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize(
    ("kind", "ending"), [*((kind, ".keras") for kind in MAKERS), ("decay", ".h5")]
)
def test_round_trip(kind, ending, tmp_path):
    original = MAKERS[kind]()
    model = trained(hvd.DistributedOptimizer(original))
    path = str(tmp_path / f"model{ending}")
    model.save(path)

    plain = keras.models.load_model(path, custom_objects={"Unregistered": Unregistered})
    assert type(plain.optimizer) is type(original)
    if ending == ".keras":  # Keras 3 loses the state in the other format
        assert_equal_state(plain.optimizer, model.optimizer)

    loaded = hvd.load_model(path)
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    assert type(loaded.optimizer).__name__ == type(original).__name__
    assert isinstance(loaded.optimizer, type(original))
    assert_equal_state(loaded.optimizer, model.optimizer)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()

    images, labels = cases.share(48, *cases.digits(48))
    for trains_on in (model, loaded):
        trains_on.train_on_batch(images, labels)
    assert cases.are_equal_on_all_ranks(cases.values_of(loaded.weights))
    for found, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    loaded.save(path)
    assert_equal_state(hvd.load_model(path).optimizer, loaded.optimizer)


@pytest.mark.skipif(cases.IS_KERAS3, reason="Keras 2")
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_legacy_optimizer(tmp_path):
    model = trained(hvd.DistributedOptimizer(keras.optimizers.legacy.Adam(0.01)))
    path = str(tmp_path / "model.h5")
    model.save(path)
    loaded = hvd.load_model(path, legacy_opts=True)
    assert isinstance(loaded.optimizer, keras.optimizers.legacy.Adam)
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    assert_equal_state(loaded.optimizer, model.optimizer)


@pytest.mark.skipif(not cases.IS_KERAS3, reason="Keras 2 keeps sums out of the optimizer")
def test_sums_of_passes_are_not_saved(tmp_path):
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.Adam(0.01), backward_passes_per_step=2
    )
    model = trained(optimizer)
    path = str(tmp_path / "model.keras")
    model.save(path)
    plain = keras.models.load_model(path)
    found, saved = cases.state_of(plain.optimizer), cases.state_of(optimizer)
    assert len(saved) == len(found) + len(model.trainable_weights) + 1
    assert all(np.array_equal(a, b) for a, b in zip(found, saved, strict=False))


def test_weights_files(tmp_path):
    model = trained(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    other = cases.make_model(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), seed=9)
    if cases.IS_KERAS3:  # as without Horovod: a file with state needs an optimizer with variables
        other.optimizer.build(other.trainable_variables)
    other.load_weights(path)
    for found, expected in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(not cases.IS_KERAS3, reason="Keras 2 knows no state before it builds")
def test_wrapping_keeps_the_state():
    model = trained(keras.optimizers.Adam(0.01))
    wrapped = hvd.DistributedOptimizer(model.optimizer)
    assert_equal_state(wrapped, model.optimizer)


@pytest.mark.skipif(not cases.IS_KERAS3, reason="Keras 2 saves no state of it")
def test_a_model_in_mixed_precision(tmp_path):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = trained(MAKERS["sgd"]())
        model.save(tmp_path / "model.keras")
        loaded = hvd.load_model(tmp_path / "model.keras")
        assert_equal_state(loaded, model)
        images, labels = cases.share(48, *cases.digits(96))
        loaded.train_on_batch(images, labels)
    finally:
        keras.mixed_precision.set_global_policy("float32")
