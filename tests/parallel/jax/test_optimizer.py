"""DistributedOptimizer: training on shares equals training on the joint batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from horovod.jax import gradient_reduction

optax = pytest.importorskip("optax", reason="optax is not installed")

ROWS = 24  # of the joint batch: 1, 2, 3 and 4 ranks have equal shares
RANDOM = np.random.default_rng(5)
INPUTS, TARGETS = RANDOM.normal(size=(ROWS, 5)), RANDOM.normal(size=(ROWS, 2))
PARAMS = {"hidden": RANDOM.normal(size=(5, 7)), "out": [RANDOM.normal(size=(7, 2)), np.zeros(2)]}


def params():
    return jax.tree_util.tree_map(jnp.asarray, PARAMS)


def loss(params, inputs, targets):
    hidden = jnp.tanh(inputs @ params["hidden"])
    return jnp.mean((hidden @ params["out"][0] + params["out"][1] - targets) ** 2)


GRADIENT = jax.grad(loss)


def train(optimizer, batches, mode=jax.jit, gradient=GRADIENT):
    """Parameters after a step on each batch."""

    def step(params, state, batch):
        updates, state = optimizer.update(gradient(params, *batch), state, params)
        return optax.apply_updates(params, updates), state

    step, current = mode(step), params()
    state = optimizer.init(current)
    for batch in batches:
        current, state = step(current, state, batch)
    return current


def share(rank=None):
    rank = hvd.rank() if rank is None else rank
    return INPUTS[rank :: hvd.size()], TARGETS[rank :: hvd.size()]


def assert_close(found, expected, tolerance=1e-12):
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        found,
        expected,
    )


OPTIONS = {
    "plain": {},
    "groups": {"groups": 2},
    "more groups than gradients": {"groups": 9},
    "named groups": {"groups": [["['out'][0]", "['hidden']"]]},
    "predivide": {"gradient_predivide_factor": 3.0},
    "no op": {"op": None},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_shares_train_as_the_joint_batch(mode, options):
    optimizer = hvd.DistributedOptimizer(optax.adam(1e-2), **options)
    found = train(optimizer, [share()] * 4, mode)
    assert_close(found, train(optax.adam(1e-2), [(INPUTS, TARGETS)] * 4))


def test_a_spare_core_makes_batches(monkeypatch, mode):
    monkeypatch.setattr(gradient_reduction, "has_spare_cores", lambda: True)
    monkeypatch.setattr(gradient_reduction, "BATCH_BYTES", 100)
    found = train(hvd.DistributedOptimizer(optax.adam(1e-2)), [share()] * 2, mode)
    assert_close(found, train(optax.adam(1e-2), [(INPUTS, TARGETS)] * 2))


def test_float32_to_rounding():
    single = jax.tree_util.tree_map(lambda x: jnp.asarray(x, jnp.float32), (params(), share()))
    joint = jax.tree_util.tree_map(lambda x: jnp.asarray(x, jnp.float32), (INPUTS, TARGETS))
    found = hvd.allreduce(GRADIENT(single[0], *single[1]), name="float32")
    assert {leaf.dtype for leaf in jax.tree_util.tree_leaves(found)} == {jnp.dtype("float32")}
    assert_close(found, GRADIENT(single[0], *joint), 1e-6)


@jax.tree_util.register_dataclass
@dataclass
class Module:
    """As of equinox: a pytree that is called, with a function that is no leaf."""

    weights: jax.Array
    bias: jax.Array
    activation: Callable = field(metadata={"static": True})

    def __call__(self, inputs):
        return self.activation(inputs @ self.weights + self.bias)


def test_a_module_that_is_a_pytree():
    module = Module(jnp.full((5, 2), 0.1 * hvd.rank()), jnp.zeros(2), jnp.tanh)
    module = hvd.broadcast_parameters(module)
    optimizer = hvd.DistributedOptimizer(optax.adam(1e-2), groups=[[".weights", ".bias"]])
    state = optimizer.init(module)

    @jax.jit
    def step(module, state, inputs, targets):
        gradients = jax.grad(lambda m: jnp.mean((m(inputs) - targets) ** 2))(module)
        updates, state = optimizer.update(gradients, state, module)
        return optax.apply_updates(module, updates), state

    for _ in range(3):
        module, state = step(module, state, *share())
    assert module.activation is jnp.tanh
    assert float(jnp.abs(module.weights).sum()) > 0
    assert len(set(hvd.allgather_object(np.asarray(module.weights).tobytes()))) == 1


@pytest.mark.parametrize(
    ("compression", "tolerance"), [(hvd.Compression.fp16, 1e-3), (hvd.Compression.bf16, 1e-2)]
)
def test_compression(compression, tolerance):
    optimizer = hvd.DistributedOptimizer(optax.sgd(1e-2), compression=compression)
    expected = train(optax.sgd(1e-2), [(INPUTS, TARGETS)] * 4)
    assert_close(train(optimizer, [share()] * 4), expected, tolerance)


def test_sum():
    optimizer = hvd.DistributedOptimizer(optax.sgd(1e-2 / hvd.size()), op=hvd.Sum)
    assert_close(train(optimizer, [share()] * 2), train(optax.sgd(1e-2), [(INPUTS, TARGETS)] * 2))


def test_several_passes(mode):
    optimizer = hvd.DistributedOptimizer(optax.adam(1e-2), backward_passes_per_step=2)
    batches = [share(), (share()[0] * 2, share()[1])]
    joint = [(INPUTS, TARGETS), (INPUTS * 2, TARGETS)]
    found = train(optimizer, batches * 2, mode)

    def summed(params, *_):
        return jax.tree_util.tree_map(jnp.add, *[jax.grad(loss)(params, *batch) for batch in joint])

    assert_close(found, train(optax.adam(1e-2), joint, gradient=summed))


def test_between_steps_nothing_changes():
    optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), backward_passes_per_step=3)
    state = optimizer.init(params())
    updates, state = optimizer.update(params(), state, params())
    assert all(not leaf.any() for leaf in jax.tree_util.tree_leaves(updates))
    assert int(state.count) == 1


def test_several_passes_outside_of_jit_compile_nothing(caplog):
    optimizer = hvd.DistributedOptimizer(optax.adam(0.1), backward_passes_per_step=2)
    current = params()
    state = optimizer.init(current)
    for number in range(8):  # the first four meet all operations
        with jax.log_compiles(number >= 4):
            _, state = optimizer.update(current, state, current)
    assert "ompil" not in caplog.text


def test_adasum_reduces_updates():
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.1), op=hvd.Adasum)
    current = params()
    gradients = jax.grad(loss)(current, *share())
    updates, _ = jax.jit(optimizer.update)(gradients, optimizer.init(current), current)
    own = optax.sgd(0.1).update(gradients, optax.sgd(0.1).init(current), current)[0]
    expected = hvd.allreduce(own, hvd.Adasum)
    assert_close(updates, expected)


def test_in_a_chain_and_with_extra_arguments():
    schedule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
    found = train(optax.chain(hvd.DistributedOptimizer(schedule)), [share()] * 3)
    assert_close(found, train(schedule, [(INPUTS, TARGETS)] * 3))
    plateau = hvd.DistributedOptimizer(optax.contrib.reduce_on_plateau())
    updates, _ = plateau.update(params(), plateau.init(params()), params(), value=1.0)
    assert jax.tree_util.tree_structure(updates) == jax.tree_util.tree_structure(params())


def test_a_process_set(process_sets):
    for process_set in process_sets:
        optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), process_set=process_set)
        gradients = jnp.full(3, float(hvd.rank()))
        updates, _ = jax.jit(optimizer.update)(gradients, optimizer.init(gradients), gradients)
        own = process_set.ranks if process_set.included() else [hvd.rank()]
        np.testing.assert_allclose(updates, -np.full(3, np.mean(own)))


REFUSED = {
    "optimizer": {"optimizer": 3},
    "passes": {"backward_passes_per_step": 0},
    "predivide and sum": {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
    "negative predivide": {"gradient_predivide_factor": -1.0},
    "op": {"op": 9},
    "groups": {"groups": -1},
    "twice in groups": {"groups": [["a"], ["a"]]},
    "compression": {"compression": 1},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED.keys())
def test_refused(options):
    with pytest.raises(ValueError, match=r"."):
        hvd.DistributedOptimizer(**{"optimizer": optax.sgd(0.1), **options})


@pytest.mark.parametrize("passes", ["2", 1.5, None, True])
def test_passes_are_a_whole_number(passes):
    with pytest.raises(ValueError, match=rf"a whole number of at least 1, found {passes!r}"):
        hvd.DistributedOptimizer(optax.sgd(0.1), backward_passes_per_step=passes)


MAKERS = {
    "plain": hvd.DistributedOptimizer,
    "passes": lambda inner: hvd.DistributedOptimizer(inner, backward_passes_per_step=2),
    "sharded": lambda inner: hvd.DistributedOptimizer(inner, sharded=True),
    "int8": lambda inner: hvd.DistributedOptimizer(inner, compression=hvd.Compression.int8),
    "topk": lambda inner: hvd.DistributedOptimizer(inner, compression=hvd.Compression.topk(0.1)),
    "local steps": lambda inner: hvd.LocalSGD(inner, 2),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_no_gradient_is_reduced_twice(make):
    inner = make(optax.sgd(0.1))
    with pytest.raises(ValueError, match=r"DistributedOptimizer: .* is distributed already"):
        hvd.DistributedOptimizer(inner)
    with pytest.raises(ValueError, match=r"DiLoCo: .* is distributed already"):
        hvd.DiLoCo(inner, 2)


@pytest.mark.parametrize("make", [MAKERS[key] for key in MAKERS if key != "local steps"])
def test_no_part_of_a_local_step_is_reduced(mode, make):
    local = hvd.DiLoCo(optax.chain(optax.scale(1.0), make(optax.sgd(0.1))), 2)
    state = local.init(params())
    with pytest.raises(ValueError, match=r"DiLoCo: .* is distributed already"):
        mode(local.update)(params(), state, params())
    allowed = hvd.DistributedOptimizer(optax.sgd(0.1))
    mode(allowed.update)(params(), allowed.init(params()), params())


@pytest.mark.usefixtures("several_ranks")
def test_a_group_without_a_gradient():
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.1), groups=[["['nowhere']"]])
    with pytest.raises(ValueError, match="no gradient"):
        optimizer.update(params(), optimizer.init(params()), params())
