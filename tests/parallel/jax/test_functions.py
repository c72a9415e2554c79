"""broadcast_parameters and objects, and elastic state."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.errors import HorovodInternalError, MismatchError


class Tree(NamedTuple):
    """Leaves of many kinds."""

    array: object
    inner: object
    function: object


def make_tree(rank):
    return Tree(
        jnp.full((3, 2), rank, jnp.bfloat16),
        {
            "numpy": np.arange(4.0) + rank,
            "number": 1.5 * rank,
            "flag": bool(rank % 2),
            "scalar": np.int16(rank),
            "uint32": jnp.full(2, rank, jnp.uint32),
            "complex": jnp.full(2, rank * 1j),
            "key": jax.random.key(rank),
            "none": None,
        },
        max,
    )


def test_broadcast_parameters():
    root = hvd.size() - 1
    found, expected = hvd.broadcast_parameters(make_tree(hvd.rank()), root), make_tree(root)
    assert found.function is max
    assert jax.random.key_data(found.inner["key"]).tolist() == [0, root]
    for tree in (found, expected):
        del tree.inner["key"]
    pairs = zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(expected), strict=True)
    for one, other in pairs:
        assert type(one) is type(other)
        if one is not max:
            assert np.asarray(one).dtype == np.asarray(other).dtype
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_parameters_of_a_process_set(process_sets):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        root = process_set.ranks[0]
        found = hvd.broadcast_parameters({"x": jnp.array(hvd.rank())}, root, process_set)
        assert int(found["x"]) == root


def test_parameters_in_jit_are_refused():
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(hvd.broadcast_parameters)(jnp.ones(2))


def test_objects():
    root = hvd.size() - 1
    assert hvd.broadcast_object({"rank": hvd.rank()}, root) == {"rank": root}
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


def test_elastic_state():
    key = jax.random.key(hvd.rank())
    state = hvd.elastic.JaxState(params={"w": jnp.ones(3) * hvd.rank()}, key=key, step=hvd.rank())
    state.sync()
    assert state.step == 0
    assert state.params["w"].tolist() == [0.0] * 3
    assert jax.random.key_data(state.key).tolist() == [0, 0]
    state.params = jax.jit(lambda p: {"w": p["w"] + 1}, donate_argnums=0)(state.params)
    state.step = 1
    state.commit()
    state.params = jax.jit(lambda p: {"w": p["w"] + 1}, donate_argnums=0)(state.params)
    for _ in range(2):
        state.restore()
        assert state.params["w"].tolist() == [1.0] * 3
        assert state.step == 1
        jax.jit(lambda p: p["w"] * 2, donate_argnums=0)(state.params)


@pytest.fixture
def _initialised_afterwards():
    yield
    hvd.init()


@pytest.mark.usefixtures("_initialised_afterwards")
def test_elastic_training_goes_on_after_a_failure_in_jit():
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(state.step)
        step = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))
        while state.step < 4:
            state.total = state.total + step(jnp.ones(2))
            state.step += 1
            state.commit()
            if state.step == 2 and len(calls) == 1:
                state.total = state.total + 100
                if hvd.rank() == 0:
                    raise HorovodInternalError("as if another rank had been lost")
                jax.block_until_ready(step(jnp.ones(2)))  # rank 0 leaves instead
                raise HorovodInternalError("a world of one loses nobody")
        return state.total

    total = train(hvd.elastic.JaxState(total=jnp.zeros(2), step=0))
    assert calls == [0, 2]
    assert total.tolist() == [4.0 * hvd.size()] * 2


@pytest.mark.usefixtures("several_ranks")
def test_a_mismatch_is_not_tried_again():
    @hvd.elastic.run
    def train(state):
        return jax.jit(lambda x: hvd.allreduce(x, name="bug"))(jnp.ones(1 + hvd.rank()))

    with pytest.raises(MismatchError):
        train(hvd.elastic.JaxState())
