"""DiLoCo and LocalSGD: what a simulation of all ranks comes to, states, elastic training."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from local_steps_reference import CASES, INNER_LR, SHAPES, initial, reference, target

import horovod.jax as hvd

optax = pytest.importorskip("optax", reason="optax is not installed")

STEPS = 13
STREAMING = CASES["streaming"][0]
NAMES = [f"p{index}" for index in range(len(SHAPES))]


def parameters(dtype=jnp.float64):
    return {name: jnp.asarray(value, dtype) for name, value in zip(NAMES, initial(), strict=True)}


class Training:
    """A model in training: the inner step is compiled, ``sync`` runs between two of them."""

    def __init__(self, inner=None, dtype=jnp.float64, make=hvd.DiLoCo, **arguments):
        self.optimizer = make(inner or optax.sgd(INNER_LR), **arguments)
        self.params = parameters(dtype)
        self.inner = self.optimizer.init(self.params)
        self.outer = self.optimizer.begin(self.params)
        self.update = jax.jit(self._update)

    def _update(self, params, inner, goals):
        gradients = jax.tree_util.tree_map(lambda p, goal: p - goal.astype(p.dtype), params, goals)
        updates, inner = self.optimizer.update(gradients, inner, params)
        return optax.apply_updates(params, updates), inner

    def step(self):
        number = self.outer["step"] + 1
        goals = {n: jnp.asarray(target(hvd.rank(), number, i)) for i, n in enumerate(NAMES)}
        self.params, self.inner = self.update(self.params, self.inner, goals)
        self.params, self.outer = self.optimizer.sync(self.params, self.outer)

    def run(self, steps):
        for _ in range(steps):
            self.step()

    def finish(self):
        self.params, self.outer = self.optimizer.finish(self.params, self.outer)


def assert_close(params, expected, rtol=1e-12):
    for name, value in zip(NAMES, expected, strict=True):
        np.testing.assert_allclose(np.asarray(params[name], np.float64), value, rtol, rtol)


def assert_same_everywhere(tree):
    mine = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(tree)]
    for other in hvd.allgather_object(mine):
        for ours, theirs in zip(mine, other, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def assert_equal(left, right):
    jax.tree_util.tree_map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize("case", CASES)
def test_it_comes_to_what_a_simulation_comes_to(case):
    training = Training(**CASES[case][0])
    expected = reference(case, hvd.size())
    for _ in range(STEPS):
        training.step()
        assert_close(training.params, expected.run(1)[hvd.rank()])
    assert_close(dict(zip(NAMES, training.outer["agreed"], strict=True)), expected.agreed)
    assert_same_everywhere([training.outer["agreed"], training.outer["momentum"]])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_outer_state_is_float32_at_least(dtype):
    training = Training(dtype=dtype, sync_every=3)
    training.run(6)
    assert {array.dtype.name for array in training.outer["agreed"]} == {"float32"}
    assert_same_everywhere(training.params)
    for param, agreed in zip(training.params.values(), training.outer["agreed"], strict=True):
        assert param.dtype == dtype
        np.testing.assert_array_equal(param, agreed.astype(dtype))
    if dtype == jnp.float32:
        assert_close(training.params, reference("plain", hvd.size()).run(6)[hvd.rank()], 1e-5)


def test_local_sgd_averages_parameters():
    training = Training(optax.adam(0.01), make=hvd.LocalSGD, sync_every=4)
    alone = Training(optax.adam(0.01), make=hvd.LocalSGD, sync_every=100, name="alone")
    training.run(4)
    alone.run(4)
    expected = hvd.allreduce(alone.params)
    assert_close(training.params, expected.values())
    assert_same_everywhere(training.params)


def test_finish_gives_the_agreed_model():
    training = Training(**STREAMING)
    training.run(7)
    training.finish()
    assert_same_everywhere(training.params)
    finished = training.params
    training.finish()  # nothing has changed since
    assert_equal(training.params, finished)
    training.run(6)
    agreed = training.optimizer.agreed_parameters(training.params, training.outer)
    assert_same_everywhere(agreed)
    training.finish()
    assert_same_everywhere(training.params)


@pytest.mark.parametrize("saved_at", [1, 4, 5, 6, 9])
def test_a_saved_run_goes_on_with_the_same_bits(saved_at):
    """In a new process, which has nothing on its way: another optimizer."""
    undisturbed = Training(name="undisturbed", **STREAMING)
    undisturbed.run(STEPS)
    training = Training(**STREAMING)
    training.run(saved_at)
    outer = copy.deepcopy(training.optimizer.settle(training.outer))
    loaded = Training(name="loaded", **STREAMING)
    loaded.params, loaded.inner, loaded.outer = training.params, training.inner, outer
    for each in (training, loaded):
        each.outer = outer
        each.run(STEPS - saved_at)
        assert_equal(each.params, undisturbed.params)
        each.finish()
    assert_equal(loaded.params, training.params)
    undisturbed.finish()


def test_a_state_that_was_not_settled():
    training = Training(**STREAMING)
    training.run(2)
    loaded = Training(name="loaded", **STREAMING)
    loaded.params, loaded.inner, loaded.outer = training.params, training.inner, training.outer
    loaded.run(1)
    with pytest.raises(ValueError, match=r"fragment 0 was sent after step 1.*save settle\(outer\)"):
        loaded.run(1)
    training.finish()
    hvd.barrier()


def test_compression_is_of_the_outer_gradients():
    training = Training(dtype=jnp.float32, sync_every=3, compression=hvd.Compression.bf16)
    before = hvd.metrics()["allreduce_bytes"]
    training.run(3)
    elements = sum(param.size for param in training.params.values())
    assert hvd.metrics()["allreduce_bytes"] - before == 2 * elements
    assert_same_everywhere(training.params)
    assert_close(training.params, reference("plain", hvd.size()).run(3)[hvd.rank()], 0.02)


def test_compression_between_hosts_is_of_the_outer_gradients():
    training = Training(sync_every=1, compression=hvd.Compression.int8)
    with pytest.raises(ValueError, match=r"compression=int8 needs float32, .* found float64"):
        training.run(1)


def test_elastic_training_goes_on_from_the_last_commit():
    undisturbed = Training(name="undisturbed", **STREAMING)
    undisturbed.run(10)
    expected = undisturbed.optimizer.settle(undisturbed.outer)["agreed"]
    training = Training(**STREAMING)
    failures = [8]

    @hvd.elastic.run
    def train(state):
        training.params, training.inner, training.outer = state.params, state.inner, state.outer
        while training.outer["step"] < 10:
            training.step()
            if training.outer["step"] in failures:
                failures.clear()
                raise hvd.HorovodInternalError("injected")
            if training.outer["step"] % 3 == 0:
                state.params, state.inner = training.params, training.inner
                state.outer = training.optimizer.settle(training.outer)
                state.commit()

    # Each rank's own parameters are not rank 0's: here they are the same on all.
    train(hvd.elastic.JaxState(params=training.params, inner=training.inner, outer=training.outer))
    assert_same_everywhere(training.outer["agreed"])
    if hvd.size() == 1:
        assert_equal(training.outer["agreed"], expected)
    training.finish()
    assert_same_everywhere(training.params)


def test_ranks_with_other_arguments_are_told_both(several_ranks):
    optimizer = hvd.DiLoCo(optax.sgd(0.1), sync_every=3 if hvd.rank() else 2)
    with pytest.raises(ValueError, match=r"rank \d has sync_every=3, rank 0 has sync_every=2"):
        optimizer.begin(parameters())


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
def test_finish_without_a_counted_step(dtype):
    training = Training(dtype=dtype, sync_every=4)
    training.finish()  # nothing has changed
    training.params = jax.tree_util.tree_map(lambda param: 2 * param, training.params)
    with pytest.raises(ValueError, match=r"changed since begin\(\), but no step was counted; call"):
        training.finish()


def test_mistakes_are_told_before_training():
    optimizer = hvd.DiLoCo(optax.sgd(0.1), sync_every=4, fragments=2)
    with pytest.raises(ValueError, match=r"fragments must be at most .* which is 1, found 2"):
        optimizer.begin(jnp.ones(3))
    with pytest.raises(ValueError, match=r"params\['n'\] must be a floating array, found int32"):
        optimizer.begin({"n": jnp.ones(2, jnp.int32)})
    outer = optimizer.begin(parameters())
    with pytest.raises(ValueError, match="call it outside of jit"):
        jax.jit(lambda params: optimizer.finish(params, outer)[0])(parameters())
    with pytest.raises(ValueError, match="sync: call it outside of jit"):
        jax.jit(lambda params: optimizer.sync(params, outer)[0])(parameters())
    for method in (optimizer.sync, optimizer.finish, optimizer.agreed_parameters):
        with pytest.raises(ValueError, match=r"outer must be .*, found tuple; sync returns \("):
            method(parameters(), (parameters(), outer))
    with pytest.raises(ValueError, match=r"outer must be .*, found dict"):
        optimizer.settle(parameters())
    with pytest.raises(ValueError, match=r"params have 1 arrays of shapes \[\(3,\)\], the outer"):
        optimizer.finish({"a": jnp.ones(3)}, outer)
    for distributed in (optimizer, hvd.DistributedOptimizer(optax.sgd(0.1))):
        with pytest.raises(ValueError, match="LocalSGD: this optimizer is distributed already"):
            hvd.LocalSGD(distributed, sync_every=2)
    with pytest.raises(ValueError, match="DiLoCo: expected an optax transformation, found 3"):
        hvd.DiLoCo(3, sync_every=2)
