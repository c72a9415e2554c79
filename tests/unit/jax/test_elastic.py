"""JaxState in a world of one: going on from a file."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from horovod.jax import elastic
from horovod.jax.elastic import JaxState


@pytest.fixture(autouse=True)
def _initialised(world):
    """Every test has a world."""


OPTIMIZER = optax.chain(optax.clip(1.0), optax.adam(0.1))


def make_state(seed: int) -> JaxState:
    params = {"w": jax.random.normal(jax.random.key(seed), (3,)), "b": [jnp.zeros(2, jnp.bfloat16)]}
    moments = OPTIMIZER.init(params)
    return JaxState(params=params, moments=moments, key=jax.random.key(seed), losses=[], step=0)


@partial(jax.jit, donate_argnums=(0, 1))
def update(params, moments):
    gradients = jax.tree_util.tree_map(lambda x: 2 * x, params)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments


def take_step(state: JaxState) -> None:
    state.params, state.moments = update(state.params, state.moments)
    state.losses = [*state.losses, np.float32(state.params["w"].sum())]
    state.step += 1


def test_another_process_goes_on_from_a_file(tmp_path):
    state = make_state(1)
    take_step(state)
    state.commit()
    state.save(tmp_path / "state")
    take_step(state)

    loaded = make_state(2)
    loaded.load(tmp_path / "state")
    assert (loaded.step, len(loaded.losses)) == (1, 1)
    take_step(loaded)
    found, expected = (
        jax.tree_util.tree_flatten((s.params, s.moments, s.losses)) for s in (loaded, state)
    )
    assert found[1] == expected[1]
    for ours, theirs in zip(found[0], expected[0], strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert jax.random.key_data(loaded.key).tolist() == jax.random.key_data(state.key).tolist()


def test_a_file_of_another_optimizer_changes_nothing(tmp_path):
    make_state(1).save(tmp_path / "state")
    state = make_state(2)
    state.moments = optax.sgd(0.1, momentum=0.9).init(state.params)
    state.save()
    before = state.params["w"]
    with pytest.raises(ValueError, match="moments: values of the file that this state lacks"):
        state.load(tmp_path / "state")
    assert state.params["w"].tolist() == before.tolist()


def test_a_failure_seen_by_a_commit_leaves_what_was_saved(monkeypatch):
    state = JaxState(first=jnp.ones(2), second=jnp.ones(2))
    read = elastic._saved

    def fail_at_second(leaf):
        if int(leaf[0]) == 3:
            raise RuntimeError("HorovodInternalError: rank 1 died")
        return read(leaf)

    monkeypatch.setattr(elastic, "_saved", fail_at_second)
    state.first, state.second = 2 * state.first, 3 * state.second
    with pytest.raises(RuntimeError, match="rank 1 died"):
        state.commit()
    state.restore()
    assert (state.first.tolist(), state.second.tolist()) == ([1.0, 1.0], [1.0, 1.0])
