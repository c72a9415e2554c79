"""DistributedOptimizer(sharded=True): the same bits as without, and a share of the state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.jax.sharded_state import ShardedState

optax = pytest.importorskip("optax", reason="optax is not installed")

TRANSFORMATIONS = {
    "sgd": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(optax.exponential_decay(0.1, 2, 0.5)),
    "adamw": optax.adamw(0.1, mask={"hidden": True, "out": [True, False], "half": False}),
    "rmsprop": optax.rmsprop(0.1, centered=True, momentum=0.9),
}


def params():
    """A matrix, a number, fewer elements than ranks, and another dtype."""
    random = np.random.default_rng(5)
    return {
        "hidden": jnp.asarray(random.normal(size=(37, 11)), jnp.float32),
        "out": [jnp.asarray(random.normal(size=2), jnp.float32), jnp.float32(0.5)],
        "half": jnp.asarray(random.normal(size=(3, 2, 2)), jnp.bfloat16),
    }


def gradients_of(current, step):
    random = np.random.default_rng(100 * step + hvd.rank())

    def one(leaf):
        return leaf * 0.1 + jnp.asarray(random.normal(size=leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map(one, current)


def train(optimizer, steps, start=None, mode=jax.jit):
    """Parameters and state after some steps."""
    update = mode(optimizer.update)
    current, state = start or (params(), optimizer.init(params()))
    for step in steps:
        updates, state = update(gradients_of(current, step), state, current)
        current = optax.apply_updates(current, updates)
    return current, state


def assert_equal(found, expected):
    def check(path, a, b):
        name = jax.tree_util.keystr(path)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), name)

    jax.tree_util.tree_map_with_path(check, found, expected)


def pair(inner, **options):
    return [
        hvd.DistributedOptimizer(inner, **options),
        hvd.DistributedOptimizer(inner, name="shares", sharded=True, **options),
    ]


@pytest.mark.parametrize("inner", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS.keys())
def test_the_bits_are_those_of_the_whole_step(inner):
    plain, sharded = pair(inner)
    expected, whole = train(plain, range(3))
    found, state = train(sharded, range(3))
    assert_equal(found, expected)
    assert_equal(hvd.whole_optimizer_state(state), whole)


OPTIONS = {
    "sum and groups": {"op": hvd.Sum, "groups": [["['out'][0]", "['hidden']"]]},
    "predivide and passes": {"gradient_predivide_factor": 2.0, "backward_passes_per_step": 2},
    "compression": {"compression": hvd.Compression.bf16},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_options(options):
    plain, sharded = pair(optax.adam(0.1), **options)
    assert_equal(train(sharded, range(4))[0], train(plain, range(4))[0])


def test_outside_of_jit():
    plain, sharded = pair(optax.adam(0.1))
    found = train(sharded, range(2), mode=lambda function: function)
    assert_equal(found[0], train(plain, range(2), mode=lambda function: function)[0])


def test_each_rank_keeps_its_part_of_the_state():
    state = hvd.DistributedOptimizer(optax.adam(0.1), sharded=True).init(params())
    assert isinstance(state, ShardedState)
    mu = jax.tree_util.tree_leaves(state.inner_state[0].mu)
    count = sum(leaf.size for leaf in jax.tree_util.tree_leaves(params()))
    assert abs(sum(leaf.size for leaf in mu) - count / hvd.size()) <= len(mu)


def test_a_whole_state_goes_into_either_kind():
    plain, sharded = pair(optax.chain(optax.ema(0.5), optax.adam(0.1)))
    current, state = train(sharded, range(2))
    whole = jax.tree_util.tree_map(np.asarray, hvd.whole_optimizer_state({"opt": state}))["opt"]
    cut = hvd.shard_optimizer_state({"opt": whole}, {"opt": sharded.init(params())})["opt"]
    expected, _ = train(plain, range(2, 4), (current, whole))
    assert_equal(train(sharded, range(2, 4), (current, cut))[0], expected)
    assert_equal(train(sharded, range(2, 4), (current, state))[0], expected)


def test_a_whole_state_that_does_not_fit():
    sharded = hvd.DistributedOptimizer(optax.adam(0.1), sharded=True)
    state = sharded.init(params())
    with pytest.raises(ValueError, match="state has structure"):
        hvd.shard_optimizer_state(optax.sgd(0.1, 0.9).init(params()), state)
    whole = optax.adam(0.1).init({**params(), "hidden": jnp.zeros((2, 2))})
    with pytest.raises(ValueError, match=r"hidden'\] has shape \[2, 2\], expected \[37, 11\]"):
        hvd.shard_optimizer_state(whole, state)


def test_a_process_set(process_sets):
    for process_set in process_sets:
        plain, sharded = pair(optax.adam(0.1), process_set=process_set)
        expected, _ = train(plain, range(2))
        found, state = train(sharded, range(2))
        assert_equal(found, expected)
        if process_set.included():
            hvd.whole_optimizer_state(state, process_set)


def test_an_elastic_state_keeps_the_whole():
    plain, sharded = pair(optax.adam(0.1))
    with pytest.raises(ValueError, match=r"JaxState: .*Use whole_optimizer_state"):
        hvd.elastic.JaxState(optimizer=sharded.init(params()))
    kept = hvd.elastic.JaxState(params=params(), optimizer=optax.adam(0.1).init(params()))
    kept.sync()
    start = (kept.params, hvd.shard_optimizer_state(kept.optimizer, sharded.init(params())))
    kept.params, state = train(sharded, range(2), start)
    kept.optimizer = hvd.whole_optimizer_state(state)
    kept.commit()
    kept.params = None
    kept.restore()
    assert_equal((kept.params, kept.optimizer), train(plain, range(2)))


@pytest.mark.usefixtures("several_ranks")
def test_the_state_of_another_rank_is_refused():
    sharded = hvd.DistributedOptimizer(optax.adam(0.1), sharded=True)
    other = hvd.broadcast_object(sharded.init(params()), 0, "other")
    if hvd.rank() > 0:
        with pytest.raises(ValueError, match=rf"that of rank 0 of {hvd.size()}, and this is rank"):
            sharded.update(params(), other, params())
    with pytest.raises(ValueError, match="broadcast_parameters: this is the state of an optim"):
        hvd.broadcast_parameters(other)


REFUSED = {
    "norm": (optax.clip_by_global_norm(1.0), r"alike; \w+ computes reduce_sum"),
    "adafactor": (optax.adafactor(0.1), "treats every element alike; "),
    "lamb": (optax.lamb(0.1), "treats every element alike; .* computes reduce_sum"),
    "muon": (optax.contrib.muon(0.1), "treats every element alike; "),
    "noise": (optax.noisy_sgd(0.1, key=jax.random.key(0)), r"alike; \w+ computes random"),
    "more arguments": (optax.contrib.reduce_on_plateau(), "cannot look into the update"),
    "shapes": (
        optax.adamw(0.1, mask=lambda tree: jax.tree_util.tree_map(lambda p: p.ndim > 1, tree)),
        "looks at the shapes",
    ),
    "sizes": (
        optax.stateless(lambda tree, _: jax.tree_util.tree_map(lambda p: p / p.size, tree)),
        "looks at the shapes",
    ),
    "one element for all": (
        optax.stateless(lambda tree, _: jax.tree_util.tree_map(lambda p: p + tree["out"][1], tree)),
        "cannot look into the update",
    ),
}


@pytest.mark.parametrize(("inner", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_a_transformation_that_may_look_at_several_elements(inner, text):
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(inner, sharded=True).init(params())


def test_a_whole_state_in_a_step_is_refused():
    whole = optax.adam(0.1).init(params())
    with pytest.raises(ValueError, match="cut a whole state with shard_optimizer_state"):
        hvd.DistributedOptimizer(optax.adam(0.1), sharded=True).update(params(), whole)


def test_other_arguments_are_refused():
    with pytest.raises(ValueError, match="needs op=Average or op=Sum, found Adasum"):
        hvd.DistributedOptimizer(optax.sgd(0.1), op=hvd.Adasum, sharded=True)
    with pytest.raises(ValueError, match="must be False, True or 'elementwise'"):
        hvd.DistributedOptimizer(optax.sgd(0.1), sharded="yes")
    rows = hvd.DistributedOptimizer(optax.scale_by_sm3(), sharded="elementwise")
    with pytest.raises(ValueError, match="looks at the shapes of parameters: its state is"):
        rows.init({"a": jnp.ones((3, 4))})
    novograd = hvd.DistributedOptimizer(optax.scale_by_factored_rms(), sharded="elementwise")
    with pytest.raises(ValueError, match="arrays with the elements of a parameter; state"):
        novograd.init({"a": jnp.ones((256, 256))})


def test_a_transformation_that_the_program_vouches_for():
    inner = optax.contrib.reduce_on_plateau()
    plain = hvd.DistributedOptimizer(inner)
    sharded = hvd.DistributedOptimizer(inner, sharded="elementwise")
    found, _ = sharded.update(params(), sharded.init(params()), params(), value=1.0)
    assert_equal(found, plain.update(params(), plain.init(params()), params(), value=1.0)[0])
