"""KerasState in a world of one: loading a file."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from horovod.errors import HorovodInternalError
from horovod.keras.elastic import KerasState

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within Keras's backends


@pytest.fixture(autouse=True)
def _initialised(world):
    """A world for all tests."""


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


def test_a_sync_that_fails_leaves_what_was_saved(monkeypatch):
    def lost(_: object) -> None:
        raise HorovodInternalError("rank 1 died")

    model = make_model()
    state = KerasState(model, epoch=0)
    expected = model.get_weights()
    train(model)  # in place of rank 0's broadcast
    monkeypatch.setattr(state, "_bcast_object", lost)
    with pytest.raises(HorovodInternalError, match="rank 1 died"):
        state.sync()
    state.restore()
    for found, saved in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(found, saved)
