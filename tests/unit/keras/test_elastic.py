"""KerasState in a world of one: going on from a file."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from horovod.keras.elastic import KerasState

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within Keras's backends


@pytest.fixture(autouse=True)
def _initialised(world):
    """Every test has a world."""


def make_model(width=3):
    model = keras.Sequential(
        [keras.layers.Input((2,)), keras.layers.Dense(width), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def train(model) -> None:
    model.fit(np.ones((4, 2)), np.zeros((4, 1)), verbose=0)


def test_another_process_goes_on_from_a_file(tmp_path):
    model = make_model()
    state = KerasState(model, epoch=0)
    train(model)
    state.epoch = 1
    state.commit()
    state.save(tmp_path / "state")
    train(model)

    other = make_model()
    loaded = KerasState(other, epoch=0)
    loaded.load(tmp_path / "state")
    assert loaded.epoch == 1
    train(other)
    for found, expected in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)

    with pytest.raises(ValueError, match=r"variable 0 has shape \[2, 3\] in the file, \[2, 4\]"):
        KerasState(make_model(4), epoch=0).load(tmp_path / "state")
