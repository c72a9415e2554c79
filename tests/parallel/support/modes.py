"""The three ways to run TensorFlow code: eagerly, as a ``tf.function``, in a TF1 session.

A *body* takes a list of tensors and returns tensors in any structure; a mode runs it on arrays
and returns the results as a flat list of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Body = Callable[[list[Any]], Any]
Mode = Callable[[Body, Sequence[np.ndarray]], list[np.ndarray]]


def eager(body: Body, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run it eagerly."""
    results = body([tf.constant(array) for array in arrays])
    return [result.numpy() for result in tf.nest.flatten(results)]


def function(body: Body, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Traced for the shapes of these arrays."""
    traced = tf.function(lambda *tensors: body(list(tensors)), autograph=False)
    return [result.numpy() for result in tf.nest.flatten(traced(*map(tf.constant, arrays)))]


def session(body: Body, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """In a new graph that knows the number of dimensions of its inputs, but not their sizes."""
    with tf.Graph().as_default() as graph:
        places = [tf.compat.v1.placeholder(array.dtype, [None] * array.ndim) for array in arrays]
        results = tf.nest.flatten(body(places))
        with tf.compat.v1.Session(graph=graph) as running:
            return list(running.run(results, dict(zip(places, arrays, strict=True))))


MODES: dict[str, Mode] = {"eager": eager, "function": function, "session": session}
