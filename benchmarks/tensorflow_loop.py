"""The measured loops of ``with_tensorflow.py``; runs in the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loop import Loop

__all__ = ["TensorFlowLoop"]

_WIDTH, _LAYER_COUNT, _BATCH_SIZE = 2499, 4, 128  # 25 M parameters
_SMALL_WIDTH, _SMALL_BATCH_SIZE = 64, 32
_BLOCK_COUNT, _SMALL_LAYER_COUNT = 150, 301  # 602 gradients
_MOMENTUM, _LEARNING_RATE = 0.9, 1e-3


class TensorFlowLoop(Loop):
    """One compiled function at a time, called again and again."""

    def prepare_sums(self, *, tensor_count: int, element_count: int) -> float:
        """A function that sums ``tensor_count`` tensors of ones; one of the results."""
        tf = self._contestant.tf
        tensors = [tf.ones([element_count]) for _ in range(tensor_count)]
        self._run = self._contestant.function(lambda: self._contestant.sums(tensors))
        return float(self._run()[-1][-1])

    def prepare_training(self) -> float:
        """A training step of a dense model with 25 M parameters."""
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

        return self._prepare_step(loss_of, [*weights, *biases])

    def prepare_many_gradients(self, *, model: str) -> float:
        """A training step of a deep model with 602 small variables: ``_blocks`` or ``_layers``."""
        tf = self._contestant.tf
        tf.random.set_seed(0)
        variables, output_of = (_blocks if model == "blocks" else _layers)(tf)
        tf.random.set_seed(1 + self._contestant.rank)
        inputs = tf.random.normal([_SMALL_BATCH_SIZE, _SMALL_WIDTH])
        targets = tf.random.normal([_SMALL_BATCH_SIZE, _SMALL_WIDTH])

        def loss_of() -> Any:
            return tf.reduce_mean(tf.math.squared_difference(output_of(inputs), targets))

        return self._prepare_step(loss_of, variables)

    def _prepare_step(self, loss_of: Callable[[], Any], variables: list[Any]) -> float:
        """Compile a training step and make two; the sum of the variables, to compare ranks."""
        tf = self._contestant.tf
        self._run = self._contestant.function(self._training_step(loss_of, variables))
        for _ in range(2):
            self._run()
        return sum(float(tf.reduce_sum(tf.cast(each, tf.float64))) for each in variables)

    def _training_step(self, loss_of: Callable[[], Any], variables: list[Any]) -> Any:
        """Average the gradients and apply them with momentum, one operation per variable."""
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


def _blocks(tf: Any) -> tuple[list[Any], Callable[[Any], Any]]:
    """Residual blocks of a layer, a norm and GELU, and a layer at the end."""
    shape = [_SMALL_WIDTH, _SMALL_WIDTH]
    blocks = [
        [tf.Variable(tf.random.normal(shape, stddev=0.1))]
        + [tf.Variable(value * tf.ones([_SMALL_WIDTH])) for value in (0.0, 1.0, 0.0)]
        for _ in range(_BLOCK_COUNT)
    ]
    last = [tf.Variable(tf.random.normal(shape, stddev=0.1)), tf.Variable(tf.zeros(shape[:1]))]

    def output_of(hidden: Any) -> Any:
        for weight, bias, scale, shift in blocks:
            mixed = tf.matmul(hidden, weight) + bias
            mean = tf.reduce_mean(mixed, -1, keepdims=True)
            variance = tf.reduce_mean(tf.math.squared_difference(mixed, mean), -1, True)
            normal = (mixed - mean) * tf.math.rsqrt(variance + 1e-5)
            hidden += tf.nn.gelu(normal * scale + shift)
        return tf.matmul(hidden, last[0]) + last[1]

    return [*(variable for block in blocks for variable in block), *last], output_of


def _layers(tf: Any) -> tuple[list[Any], Callable[[Any], Any]]:
    """Layers with ReLU, of which XLA has little to fuse."""
    shape = [_SMALL_WIDTH, _SMALL_WIDTH]
    stddev = (2 / _SMALL_WIDTH) ** 0.5
    layers = [
        [tf.Variable(tf.random.normal(shape, stddev=stddev)), tf.Variable(tf.zeros(shape[:1]))]
        for _ in range(_SMALL_LAYER_COUNT)
    ]

    def output_of(hidden: Any) -> Any:
        for index, (weight, bias) in enumerate(layers):
            hidden = tf.matmul(hidden, weight) + bias
            hidden = hidden if index == _SMALL_LAYER_COUNT - 1 else tf.nn.relu(hidden)
        return hidden

    return [variable for layer in layers for variable in layer], output_of
