"""Shared by the Keras tests: digits, models, steps with given gradients, on every Keras."""

from __future__ import annotations

import keras
import numpy as np

import horovod.keras as hvd

IS_KERAS3 = hasattr(keras, "ops")
BACKEND = keras.backend.backend() if IS_KERAS3 else "keras2"


def digits(rows: int = 960) -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits in an order that gives each rank's share every class."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(3).permutation(len(labels))[:rows]
    return (images[order] / 16).astype("float32"), labels[order]


def share(batch: int, *arrays: np.ndarray) -> list[np.ndarray]:
    """This rank's part of every joint batch, so that the joint batches stay the same."""
    rank, size = hvd.rank(), hvd.size()
    own = batch // size
    return [
        array[: len(array) // batch * batch]
        .reshape(-1, size, own, *array.shape[1:])[:, rank]
        .reshape(-1, *array.shape[1:])
        for array in arrays
    ]


def make_model(optimizer=None, seed: int = 0, **options):
    """A small classifier of digits; its weights depend only on ``seed``."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.layers.Dense(24, activation="relu", name="hidden"),
            keras.layers.Dense(10, name="out"),
        ]
    )
    if options.pop("built", True):
        model.build((None, 64))
    if optimizer is not None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"], **options)
    return model


def values_of(variables) -> list[np.ndarray]:
    """Copies of variables' values."""
    if IS_KERAS3:
        return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
    return [np.array(variable.numpy()) for variable in variables]


def state_of(optimizer) -> list[np.ndarray]:
    """Copies of all of an optimizer's variables."""
    variables = optimizer.variables
    return values_of(variables() if callable(variables) else variables)


def are_equal_on_all_ranks(values: list[np.ndarray]) -> bool:
    """Whether all ranks have the same bits."""
    flat = np.concatenate([np.ravel(value).astype(np.float64) for value in values])
    everywhere = np.asarray(hvd.allgather(flat[None]))
    return bool((everywhere == everywhere[0]).all())


def make_variables(*arrays):
    """Variables with these values."""
    if IS_KERAS3:
        return [
            keras.Variable(np.asarray(array, "float32"), name=f"v{i}")
            for i, array in enumerate(arrays)
        ]
    import tensorflow as tf

    return [
        tf.Variable(np.asarray(array, "float32"), name=f"v{i}") for i, array in enumerate(arrays)
    ]


def step(optimizer, variables, gradients) -> None:
    """One step of an optimizer with this rank's gradients, which may be None."""
    if IS_KERAS3:
        tensors = [
            None if gradient is None else keras.ops.convert_to_tensor(np.float32(gradient))
            for gradient in gradients
        ]
        optimizer.apply(tensors, variables)
        return
    import tensorflow as tf

    def loss():
        pairs = zip(variables, gradients, strict=True)
        return sum(tf.reduce_sum(v * np.float32(g)) for v, g in pairs if g is not None)

    optimizer.minimize(loss, variables)
