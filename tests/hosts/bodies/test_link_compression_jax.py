"""The same for JAX: layers that are exact by name, and errors in the optimizer's state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import horovod.jax as hvd
from horovod.jax.error_feedback import FeedbackState

COUNT = 3000
MOST_ERROR = 0.3  # of int4, of the largest element of a block


def values(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(COUNT).astype(np.float32)


def params():
    return {name: jnp.zeros(COUNT) for name in ("embedding", "kernel", "scale_norm")}


def make(**options):
    sgd = optax.sgd(1.0)
    return hvd.DistributedOptimizer(sgd, compression=hvd.Compression.int4, **options)


@pytest.mark.parametrize("mode", [jax.jit, lambda step: step], ids=["jit", "eager"])
def test_error_feedback_loses_nothing(mode):
    optimizer, steps = make(name="loses"), 20
    gradients = {name: jnp.asarray(values(hvd.rank())) for name in params()}
    exact = np.mean([values(rank) for rank in range(hvd.size())], axis=0)

    @mode
    def step(current, state):
        updates, state = optimizer.update(gradients, state, current)
        return optax.apply_updates(current, updates), state

    current, state = params(), optimizer.init(params())
    assert isinstance(state, FeedbackState)
    assert list(state.errors) == ["['kernel']"]
    for _ in range(steps):
        current, state = step(current, state)
    lacking = {name: np.abs(np.asarray(value) + steps * exact) for name, value in current.items()}
    assert lacking["embedding"].max() < 1e-4
    assert lacking["scale_norm"].max() < 1e-4
    assert lacking["kernel"].max() <= 2 * MOST_ERROR * hvd.size() ** 0.5 * np.abs(exact).max()
    is_one_host = hvd.local_size() == hvd.size()
    assert bool(jnp.any(state.errors["['kernel']"] != 0)) != is_one_host


def test_errors_of_another_rank_do_not_count():
    optimizer = make(name="another")
    zeros = params()
    state = optimizer.init(zeros)
    errors = {path: jnp.ones(COUNT) for path in state.errors}
    updates, after = optimizer.update(zeros, state._replace(rank=jnp.int32(-1), errors=errors))
    assert not any(jnp.any(update) for update in updates.values())
    assert after.rank == hvd.rank()
    updates, _ = optimizer.update(zeros, state._replace(errors=errors))
    np.testing.assert_allclose(updates["kernel"], -np.ones(COUNT), rtol=1e-3)
    assert not jnp.any(updates["embedding"])


def test_several_passes_keep_errors():
    optimizer = make(name="passes", backward_passes_per_step=2)
    state = optimizer.init(params())
    gradients = {name: jnp.asarray(values(hvd.rank())) for name in params()}
    for _ in range(4):
        _, state = jax.jit(optimizer.update)(gradients, state)
    assert set(state.inner_state.errors) == {"['kernel']"}


def test_a_gradient_through_error_feedback_is_refused():
    optimizer = make(name="refused")
    state = optimizer.init(params())

    def total(gradients):
        return optimizer.update(gradients, state)[0]["kernel"].sum()

    with pytest.raises(NotImplementedError, match="error feedback has no gradient"):
        jax.grad(total)(params())
