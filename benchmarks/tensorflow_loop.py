"""The measured loops of ``with_tensorflow.py``; runs in the workers."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

__all__ = ["TensorFlowLoop"]

_WIDTH, _LAYER_COUNT, _BATCH_SIZE = 2499, 4, 128  # 25 M parameters
_MOMENTUM, _LEARNING_RATE = 0.9, 1e-3


class TensorFlowLoop:
    """One compiled function at a time, called again and again."""

    def __init__(self, contestant: Any) -> None:
        self._contestant = contestant
        self._run: Callable[[], Any] = lambda: None

    def prepare_sums(self, *, tensor_count: int, element_count: int) -> float:
        """A function that sums so many tensors; one of the results, to check it."""
        tf = self._contestant.tf
        tensors = [tf.ones([element_count]) for _ in range(tensor_count)]
        self._run = self._contestant.function(lambda: self._contestant.sums(tensors))
        return float(self._run()[-1][-1])

    def prepare_training(self) -> float:
        """A function that makes a training step, called twice; a sum over the weights."""
        tf = self._contestant.tf
        tf.random.set_seed(0)
        shape = [_WIDTH, _WIDTH]
        weights = [
            tf.Variable(tf.random.normal(shape, stddev=(2 / _WIDTH) ** 0.5))
            for _ in range(_LAYER_COUNT)
        ]
        biases = [tf.Variable(tf.zeros([_WIDTH])) for _ in range(_LAYER_COUNT)]
        tf.random.set_seed(1 + self._contestant.rank)
        inputs = tf.random.normal([_BATCH_SIZE, _WIDTH])
        targets = tf.random.normal([_BATCH_SIZE, _WIDTH])

        def loss_of() -> Any:
            hidden = inputs
            for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                hidden = tf.matmul(hidden, weight) + bias
                hidden = hidden if index == _LAYER_COUNT - 1 else tf.nn.relu(hidden)
            return tf.reduce_mean(tf.math.squared_difference(hidden, targets))

        self._run = self._contestant.function(self._training_step(loss_of, [*weights, *biases]))
        for _ in range(2):
            self._run()
        return sum(float(tf.reduce_sum(tf.cast(weight, tf.float64))) for weight in weights)

    def measure(self, *, iterations: int) -> float:
        """Seconds per call on this rank, all ranks having started together."""
        run = self._run
        self._contestant.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            run()
        return (time.perf_counter() - start) / iterations

    def release(self) -> None:
        """Give the memory back before the next function is prepared."""
        self._run = lambda: None
        gc.collect()

    def _training_step(self, loss_of: Callable[[], Any], variables: list[Any]) -> Any:
        """Gradients of all ranks, applied with momentum by one operation per variable."""
        contestant, tf = self._contestant, self._contestant.tf
        velocities = [tf.Variable(tf.zeros_like(variable)) for variable in variables]

        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of()
            gradients = contestant.gradients(tape, loss, variables)
            for variable, velocity, gradient in zip(variables, velocities, gradients, strict=True):
                tf.raw_ops.ResourceApplyMomentum(
                    var=variable.handle,
                    accum=velocity.handle,
                    lr=_LEARNING_RATE,
                    grad=gradient,
                    momentum=_MOMENTUM,
                )
            return loss

        return step
