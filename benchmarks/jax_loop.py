"""The measured loops of ``with_jax.py``; runs in the workers."""

from __future__ import annotations

from typing import Any

import numpy as np
from loop import Loop

__all__ = ["JaxLoop"]

_MOMENTUM, _LEARNING_RATE = 0.9, 1e-3


class JaxLoop(Loop):
    """One compiled training step at a time, called again and again."""

    def prepare_training(self, *, width: int, layer_count: int, batch_size: int) -> float:
        """A step of a dense network, called twice; a sum over the weights, to compare ranks."""
        import optax

        contestant, jax = self._contestant, self._contestant.jax
        random = np.random.default_rng(0)
        shape, scale = (width, width), (1 / width) ** 0.5
        layers = [
            (random.normal(size=shape, scale=scale).astype("f4"), np.zeros(width, "f4"))
            for _ in range(layer_count)
        ]
        random = np.random.default_rng(1 + contestant.rank)
        batch = [
            contestant.shared(random.normal(size=(batch_size, width)).astype("f4"))
            for _ in range(2)
        ]
        optimizer = contestant.optimizer(optax.sgd(_LEARNING_RATE, _MOMENTUM))

        def step(params: Any, state: Any, inputs: Any, targets: Any) -> Any:
            loss, gradients = jax.value_and_grad(_loss)(params, inputs, targets)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, loss

        compiled = jax.jit(step, donate_argnums=(0, 1))
        params = contestant.replicated(layers)
        current = [params, jax.jit(optimizer.init)(params)]

        def run() -> Any:
            *current[:], loss = compiled(*current, *batch)
            return jax.block_until_ready(loss)

        self._run = run
        for _ in range(2):
            run()
        return float(sum(float(np.asarray(weight).sum()) for weight, _ in current[0]))


def _loss(params: Any, inputs: Any, targets: Any) -> Any:
    import jax.numpy as jnp

    hidden = inputs
    for weight, bias in params:
        hidden = jnp.tanh(hidden @ weight + bias)
    return jnp.mean((hidden - targets) ** 2)
