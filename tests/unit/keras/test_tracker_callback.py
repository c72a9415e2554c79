"""The callback that sends metrics while ``fit`` trains."""

from __future__ import annotations

import keras
import numpy as np

from horovod.keras import callbacks


class Tracker:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def step(self) -> None:
        self.calls.append("step")

    def send(self) -> None:
        self.calls.append("send")


def test_each_batch_is_a_step_and_the_end_is_sent() -> None:
    tracker = Tracker()
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    zeros = np.zeros((4, 1))
    model.fit(
        zeros,
        zeros,
        batch_size=2,
        epochs=2,
        verbose=0,
        validation_data=(zeros, zeros),
        callbacks=[callbacks.TrackerCallback(tracker)],
    )
    assert tracker.calls == ["step"] * 4 + ["send"]
