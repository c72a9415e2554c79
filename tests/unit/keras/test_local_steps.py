"""``agreed_parameters`` of local steps on one rank: when it changes nothing, and errors inside."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import horovod.keras as hvd

# Of the torch backend.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


class Inside(keras.callbacks.Callback):
    """Calls ``then`` with the agreed parameters in the model after the second batch."""

    def __init__(self, local_steps, then):
        super().__init__()
        self.local_steps, self.then = local_steps, then

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            with self.local_steps.agreed_parameters():
                self.then(self.model)


def make_model():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((2, 1), "float32")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def fit(model, *callbacks):
    inputs = np.ones((4, 2), "float32")
    model.fit(inputs, inputs[:, :1], batch_size=1, verbose=0, callbacks=list(callbacks))


@pytest.fixture
def local_steps(world):
    return hvd.callbacks.LocalSGDCallback(sync_every=8)


def test_this_ranks_own_values_come_back(local_steps):
    seen = []
    disturbed, alone = make_model(), make_model()
    fit(disturbed, local_steps, Inside(local_steps, lambda model: seen.append(model.get_weights())))
    assert np.array_equal(seen[0][0], np.ones((2, 1)))
    fit(alone)
    assert np.array_equal(disturbed.get_weights()[0], alone.get_weights()[0])


def test_they_come_back_after_an_error(local_steps):
    def fail(model):
        raise KeyError("stop")

    stopped, alone = make_model(), make_model()
    with pytest.raises(KeyError):
        fit(stopped, local_steps, Inside(local_steps, fail))
    alone.fit(np.ones((2, 2)), np.ones((2, 1)), batch_size=1, verbose=0)
    np.testing.assert_allclose(stopped.get_weights()[0], alone.get_weights()[0], 1e-6)
    assert not np.array_equal(stopped.get_weights()[0], np.ones((2, 1)))


def test_nothing_changes_before_fit_and_after_it(local_steps):
    with local_steps.agreed_parameters():
        pass
    model = make_model()
    fit(model, local_steps)
    values = model.get_weights()[0]
    with local_steps.agreed_parameters():
        assert np.array_equal(model.get_weights()[0], values)
    assert np.array_equal(model.get_weights()[0], values)


def test_a_model_that_has_other_variables_now_is_refused(local_steps):
    def freeze(model):
        model.layers[-1].trainable = False
        with pytest.raises(ValueError, match="the model has 0 trainable variables"):
            local_steps.agreed_parameters().__enter__()
        model.layers[-1].trainable = True

    fit(make_model(), local_steps, Inside(local_steps, freeze))
